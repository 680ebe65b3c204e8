// Scores of keys, and values mixed, one query per head: as floats. Rows are numbers as they are
// stored, or codes whose scales are in the query or the weights.

// parts[h] = the four vectors whose sums are start[h] + q[h] · keys[i …], folded into one, for N
// heads and KEYS keys from i on; q (N, D). `start` counts with all of its lanes.
template <typename Source, int N>
static inline void score_keys(const Batch& batch, const float* q, const vec* start, int64_t D,
                              int64_t i, vec (*parts)[WIDTH / KEYS], int64_t part) {
  const int64_t row = Source::row_bytes(D);
  const uint8_t* keys[KEYS];  // past the last key, the last one again: nobody sees its score
  for (int k = 0; k < KEYS; k++) {
    keys[k] = batch.keys + (i + k < batch.count ? i + k : batch.count - 1) * row;
    ask_for(keys[k] + AHEAD * row, row);
  }
  vec total[N][KEYS];
  for (int h = 0; h < N; h++)
    for (int k = 0; k < KEYS; k++) total[h][k] = start[h];
  for (int64_t d = 0; d < D; d += WIDTH) {
    vec key[KEYS];
    for (int k = 0; k < KEYS; k++) key[k] = key_at<Source>(keys[k], d, D);
    for (int h = 0; h < N; h++) {
      const vec x = float_at<Source>(q + h * D, d, D);
      for (int k = 0; k < KEYS; k++) total[h][k] = fma(x, key[k], total[h][k]);
    }
  }
  for (int h = 0; h < N; h++) parts[h][part] = fold(total[h]);
}

// Scores of the keys from `first` on that share a block of codes, or of all keys of a batch that is
// exact; -infinity behind the last key. They go to memory as whole vectors, as they are read again:
// a vector put together of several smaller writes has to wait for all of them.
template <typename Source, int N>
static void score(Batch& batch, const float* q, const vec* start, int64_t D, int64_t first,
                  int64_t last) {
  for (int64_t i = first; i < last; i += WIDTH) {
    vec parts[N][WIDTH / KEYS];
    for (int64_t part = 0; part < WIDTH / KEYS; part++) {
      const int64_t at = i + part * KEYS;
      if (at < batch.count) {
        score_keys<Source, N>(batch, q, start, D, at, parts, part);
      } else {
        for (int h = 0; h < N; h++) parts[h][part] = zero();
      }
    }
    for (int h = 0; h < N; h++) store(batch.weight[h] + i, sums(parts[h]));
  }
  for (int h = 0; h < N; h++) {
    for (int64_t i = batch.count; i < last; i++) batch.weight[h][i] = -INFINITY;
  }
}

// mixed[h][d …] = mixed · shrunk[h] + least[h] + Σ_i weights[h][i] · value[i], for N heads and
// VECTORS vectors of channels from d on, which lie in GROUPS groups with weights of their own.
template <typename Source, int N, int VECTORS, int GROUPS>
static inline void mix_values(const Batch& batch, const Weights* weights, const float* shrunk,
                              const float (*least)[HEADS], float* mixed, int64_t d, int64_t D) {
  vec total[N][VECTORS];
  for (int h = 0; h < N; h++) {
    for (int v = 0; v < VECTORS; v++) {
      const vec before = float_at<Source>(mixed + h * D, d + v * WIDTH, D);
      total[h][v] = fma(before, set1(shrunk[h]), set1(least[v * GROUPS / VECTORS][h]));
    }
  }
  const int64_t row = Source::row_bytes(D);
  for (int64_t i = 0; i < batch.count; i++) {
    if (d == 0) ask_for(batch.values + (i + AHEAD) * row, row);
    vec value[VECTORS];
    for (int v = 0; v < VECTORS; v++) {
      value[v] = key_at<Source>(batch.values + i * row, d + v * WIDTH, D);
    }
    for (int h = 0; h < N; h++) {
      for (int g = 0; g < GROUPS; g++) {
        const vec weight = set1(weights[g][h][i]);
        for (int v = g * VECTORS / GROUPS; v < (g + 1) * VECTORS / GROUPS; v++) {
          total[h][v] = fma(weight, value[v], total[h][v]);
        }
      }
    }
  }
  for (int h = 0; h < N; h++) {
    for (int v = 0; v < VECTORS; v++) {
      const int64_t at = d + v * WIDTH;
      if constexpr (Source::WHOLE) store(mixed + h * D + at, total[h][v]);
      else store_some(mixed + h * D + at, total[h][v], D - at);
    }
  }
}

template <typename Source, int N>
static void mix(const Batch& batch, const Weights& weights, const float* shrunk,
                const float (*least)[HEADS], float* mixed, int64_t first, int64_t last, int64_t D) {
  int64_t d = first;
  for (; d + CHUNK * WIDTH <= last; d += CHUNK * WIDTH) {
    mix_values<Source, N, CHUNK, 1>(batch, &weights, shrunk, least, mixed, d, D);
  }
  for (; d + 2 * WIDTH <= last; d += 2 * WIDTH) {  // half of 64 channels: a group of 32
    mix_values<Source, N, 2, 1>(batch, &weights, shrunk, least, mixed, d, D);
  }
  for (; d < last; d += WIDTH) {
    mix_values<Source, N, 1, 1>(batch, &weights, shrunk, least, mixed, d, D);
  }
}

// N heads of a group, from head `first` of the part on, against a batch of exact numbers.
template <typename Source, int N>
static void attend_exact(Batch& batch, const float* q, int64_t first, int64_t D,
                         const Part& part) {
  const float none[1][HEADS] = {};
  float shrunk[N];
  vec start[N];
  for (int h = 0; h < N; h++) start[h] = zero();
  score<Source, N>(batch, q + first * D, start, D, 0, batch.size);
  weigh<N>(batch, first, part, shrunk);
  mix<Source, N>(batch, batch.weight, shrunk, none, part.mixed + first * D, 0, D, D);
}

template <typename Source>
static void attend_exact_batch(Batch& batch, const float* q, int64_t G, int64_t D,
                               const Part& part) {
  for (int64_t g = 0; g < G; g += HEADS) {
    switch (G - g < HEADS ? G - g : HEADS) {
      case 1: attend_exact<Source, 1>(batch, q, g, D, part); break;
      case 2: attend_exact<Source, 2>(batch, q, g, D, part); break;
      case 3: attend_exact<Source, THREE>(batch, q, g, D, part); break;
      default: attend_exact<Source, HEADS>(batch, q, g, D, part);
    }
  }
}

// The same, with or without a remainder behind the last whole vector of a row.
template <typename T>
static void attend_numbers(Batch& batch, const float* q, int64_t G, int64_t D, const Part& part) {
  if (D % WIDTH == 0) attend_exact_batch<Exact<T, true>>(batch, q, G, D, part);
  else attend_exact_batch<Exact<T, false>>(batch, q, G, D, part);
}
