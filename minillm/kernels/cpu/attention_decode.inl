// Attention of one query per head, straight on the cache: decode. The heads of a group share keys,
// so each key is read, and made a vector of floats, once for several heads. Keys are taken 32 at a
// time (`Batch`): their scores, then the running softmax, then their values.
//
// Codes are never turned back into keys. With key = code · scale + minimum, channel by channel,
//   q · key = (q · scale) · code + q · minimum,
// so that the scales of a block go into the query; and a value's scales into its weight.

constexpr int64_t HEADS = 4;  // that are worked on together, at most
constexpr int64_t KEYS = 4;   // whose sums are kept in registers
constexpr int64_t CHUNK = 4;  // vectors of a value, the same

// The 32 keys (or fewer) that are being worked on.
struct Batch {
  int64_t count;
  const uint8_t *keys, *values;          // rows, one behind the other
  const uint16_t *scales, *minima;       // of values that are codes, by token and group
  float weight[HEADS][BLOCK];            // scores, then e^(score - highest)
  float group[HEADS][BLOCK];             // weight · scale, of one group of channels
};

// scores[h][i] += q[h] · keys[i], for N heads; q (N, D).
template <typename Source, int N>
static void score_keys(Batch& batch, const float* q, int64_t D) {
  const int64_t row = Source::row_bytes(D);
  int64_t i = 0;
  for (; i + KEYS <= batch.count; i += KEYS) {
    const uint8_t* keys = batch.keys + i * row;
    vec total[N][KEYS];
    for (int h = 0; h < N; h++)
      for (int k = 0; k < KEYS; k++) total[h][k] = zero();
    for (int64_t d = 0; d < D; d += WIDTH) {
      vec key[KEYS];
      for (int k = 0; k < KEYS; k++) key[k] = read_some<Source>(keys + k * row, d, D);
      for (int h = 0; h < N; h++) {
        const vec x = load_some(q + h * D + d, D - d);
        for (int k = 0; k < KEYS; k++) total[h][k] = fma(x, key[k], total[h][k]);
      }
    }
    for (int h = 0; h < N; h++)
      for (int k = 0; k < KEYS; k++) batch.weight[h][i + k] += sum(total[h][k]);
  }
  for (; i < batch.count; i++) {
    for (int h = 0; h < N; h++) {
      vec total = zero();
      for (int64_t d = 0; d < D; d += WIDTH) {
        const vec key = read_some<Source>(batch.keys + i * row, d, D);
        total = fma(load_some(q + h * D + d, D - d), key, total);
      }
      batch.weight[h][i] += sum(total);
    }
  }
}

// Scores become weights. Where one of them is the highest so far, what was summed before shrinks:
// returns by how much.
static float weigh(float* weight, int64_t count, float& highest_yet, float& total) {
  float most = highest_yet;
  for (int64_t i = 0; i < count; i++) most = weight[i] > most ? weight[i] : most;
  const float base = most == -INFINITY ? 0.0f : most;  // no key has counted yet
  vec added = zero();
  for (int64_t i = 0; i < count; i += WIDTH) {
    const vec x = exp(sub(load_some(weight + i, count - i), set1(base)));
    store_some(weight + i, x, count - i);
    added = add(added, load_some(weight + i, count - i));  // without what lies behind the end
  }
  const float shrunk = highest_yet == -INFINITY ? 0.0f : expf(highest_yet - base);
  total = total * shrunk + sum(added);
  highest_yet = most;
  return shrunk;
}

// mixed[h][d0 …] = mixed · shrunk[h] + Σ_i weight[h][i] · value[i], for N heads and `vectors`
// vectors of channels. weights: (HEADS, BLOCK). least: is added to each channel.
template <typename Source, int N, int VECTORS>
static void mix_values(const Batch& batch, const float (*weights)[BLOCK], const float* shrunk,
                       const float* least, float* mixed, int64_t d0, int64_t D) {
  vec total[N][VECTORS];
  for (int h = 0; h < N; h++) {
    for (int v = 0; v < VECTORS; v++) {
      const int64_t d = d0 + v * WIDTH;
      const vec before = load_some(mixed + h * D + d, D - d);
      total[h][v] = fma(before, set1(shrunk[h]), set1(least[h]));
    }
  }
  const int64_t row = Source::row_bytes(D);
  for (int64_t i = 0; i < batch.count; i++) {
    for (int v = 0; v < VECTORS; v++) {
      const vec value = read_some<Source>(batch.values + i * row, d0 + v * WIDTH, D);
      for (int h = 0; h < N; h++) total[h][v] = fma(set1(weights[h][i]), value, total[h][v]);
    }
  }
  for (int h = 0; h < N; h++) {
    for (int v = 0; v < VECTORS; v++) {
      const int64_t d = d0 + v * WIDTH;
      store_some(mixed + h * D + d, total[h][v], D - d);
    }
  }
}

template <typename Source, int N>
static void mix(const Batch& batch, const float (*weights)[BLOCK], const float* shrunk,
                const float* least, float* mixed, int64_t first, int64_t last, int64_t D) {
  int64_t d = first;
  for (; d + (CHUNK - 1) * WIDTH < last; d += CHUNK * WIDTH) {
    mix_values<Source, N, CHUNK>(batch, weights, shrunk, least, mixed, d, D);
  }
  for (; d < last; d += WIDTH) {
    mix_values<Source, N, 1>(batch, weights, shrunk, least, mixed, d, D);
  }
}

// Values that are codes: group by group, its scales in the weights and its minima summed apart.
template <typename Source, int N>
static void mix_codes(Batch& batch, const float* shrunk, float* mixed, int64_t channels,
                      int64_t D) {
  for (int64_t g = 0; g < D / channels; g++) {
    float least[N];
    for (int h = 0; h < N; h++) {
      least[h] = 0.0f;
      for (int64_t i = 0; i < batch.count; i++) {
        const int64_t at = i * (D / channels) + g;
        batch.group[h][i] = batch.weight[h][i] * wide(batch.scales[at]);
        least[h] += batch.weight[h][i] * wide(batch.minima[at]);
      }
    }
    mix<Source, N>(batch, batch.group, shrunk, least, mixed, g * channels, (g + 1) * channels, D);
  }
}

// N heads of a group, from head `first` of the part on, against a batch of exact numbers.
template <typename Source, int N>
static void attend_exact(Batch& batch, const float* q, int64_t first, int64_t D,
                         const Part& part) {
  const float none[N] = {};
  float shrunk[N];
  for (int h = 0; h < N; h++) {
    for (int64_t i = 0; i < batch.count; i++) batch.weight[h][i] = 0.0f;
  }
  score_keys<Source, N>(batch, q + first * D, D);
  for (int h = 0; h < N; h++) {
    shrunk[h] = weigh(batch.weight[h], batch.count, part.highest[first + h], part.total[first + h]);
  }
  mix<Source, N>(batch, batch.weight, shrunk, none, part.mixed + first * D, 0, D, D);
}

// The same against a batch within a block of codes, whose keys have scales and minima (D,).
template <typename Source, int N>
static void attend_codes(Batch& batch, const float* q, int64_t first, int64_t D,
                         const float* key_scales, const float* key_minima, int64_t channels,
                         const Part& part) {
  float scaled[N * MAX_HEAD], shrunk[N];
  for (int h = 0; h < N; h++) {
    const float* x = q + (first + h) * D;
    vec constant = zero();
    for (int64_t d = 0; d < D; d += WIDTH) {  // D is a multiple of WIDTH here
      store(scaled + h * D + d, mul(load(x + d), load(key_scales + d)));
      constant = fma(load(x + d), load(key_minima + d), constant);
    }
    const float least = sum(constant);
    for (int64_t i = 0; i < batch.count; i++) batch.weight[h][i] = least;
  }
  score_keys<Source, N>(batch, scaled, D);
  for (int h = 0; h < N; h++) {
    shrunk[h] = weigh(batch.weight[h], batch.count, part.highest[first + h], part.total[first + h]);
  }
  mix_codes<Source, N>(batch, shrunk, part.mixed + first * D, channels, D);
}

template <typename Source>
static void attend_exact_batch(Batch& batch, const float* q, int64_t G, int64_t D,
                               const Part& part) {
  for (int64_t g = 0; g < G; g += HEADS) {
    switch (G - g) {
      case 1: attend_exact<Source, 1>(batch, q, g, D, part); break;
      case 2: attend_exact<Source, 2>(batch, q, g, D, part); break;
      case 3: attend_exact<Source, 3>(batch, q, g, D, part); break;
      default: attend_exact<Source, 4>(batch, q, g, D, part);
    }
  }
}

template <typename Source>
static void attend_code_batch(Batch& batch, const uint16_t* scales, const uint16_t* minima,
                              int64_t channels, const float* q, int64_t G, int64_t D,
                              const Part& part) {
  float key_scales[MAX_HEAD], key_minima[MAX_HEAD];
  widen({scales, Numbers::BFLOAT16}, D, key_scales);
  widen({minima, Numbers::BFLOAT16}, D, key_minima);
  for (int64_t g = 0; g < G; g += HEADS) {
    switch (G - g) {
      case 1:
        attend_codes<Source, 1>(batch, q, g, D, key_scales, key_minima, channels, part);
        break;
      case 2:
        attend_codes<Source, 2>(batch, q, g, D, key_scales, key_minima, channels, part);
        break;
      case 3:
        attend_codes<Source, 3>(batch, q, g, D, key_scales, key_minima, channels, part);
        break;
      default:
        attend_codes<Source, 4>(batch, q, g, D, key_scales, key_minima, channels, part);
    }
  }
}

// A batch at `place`, all of it exact or all of it codes.
static void attend_batch(const HeadCache& head, int64_t place, Batch& batch, const float* q,
                         int64_t G, int64_t D, const Part& part) {
  const CacheForm& form = *head.form;
  if (place >= head.full) {
    const int64_t bytes = (place - head.full) * D * (form.numbers == Numbers::FLOAT32 ? 4 : 2);
    batch.keys = head.keys.exact + bytes;
    batch.values = head.values.exact + bytes;
    switch (form.numbers) {
      case Numbers::BFLOAT16: return attend_exact_batch<Exact<bfloat16>>(batch, q, G, D, part);
      case Numbers::FLOAT16: return attend_exact_batch<Exact<float16>>(batch, q, G, D, part);
      default: return attend_exact_batch<Exact<float>>(batch, q, G, D, part);
    }
  }
  if (form.key_channels || D % WIDTH || form.value_channels % WIDTH) {
    // Forms that are rare, or narrower than a vector: through float32.
    float keys[BLOCK * MAX_HEAD], values[BLOCK * MAX_HEAD];
    for (int64_t i = 0; i < batch.count; i++) {
      read_row(head, true, place + i, D, keys + i * D);
      read_row(head, false, place + i, D, values + i * D);
    }
    batch.keys = reinterpret_cast<const uint8_t*>(keys);
    batch.values = reinterpret_cast<const uint8_t*>(values);
    return attend_exact_batch<Exact<float>>(batch, q, G, D, part);
  }
  const int64_t channels = form.value_channels, at = place * (D / channels);
  const uint16_t* scales = head.keys.scales + place / BLOCK * D;
  const uint16_t* minima = head.keys.minima + place / BLOCK * D;
  batch.keys = head.keys.codes + place * D * form.bits / 8;
  batch.values = head.values.codes + place * D * form.bits / 8;
  batch.scales = head.values.scales + at;
  batch.minima = head.values.minima + at;
  if (form.bits == 8) {
    attend_code_batch<Codes8>(batch, scales, minima, channels, q, G, D, part);
  } else {
    attend_code_batch<Codes4>(batch, scales, minima, channels, q, G, D, part);
  }
}

static void attend(const HeadCache& head, const Run* runs, int64_t num_runs, const float* q,
                   int64_t G, int64_t D, const Part& part) {
  for (int64_t g = 0; g < G; g++) {
    part.highest[g] = -INFINITY;
    part.total[g] = 0.0f;
  }
  for (int64_t i = 0; i < G * D; i++) part.mixed[i] = 0.0f;
  Batch batch;
  for (int64_t r = 0; r < num_runs; r++) {
    const int64_t end = runs[r].first + runs[r].count;
    for (int64_t place = runs[r].first; place < end; place += batch.count) {
      // A batch ends at its block's end; for what is exact the border means nothing.
      const int64_t border = head.full ? place / BLOCK * BLOCK + BLOCK : place + BLOCK;
      batch.count = (border < end ? border : end) - place;
      attend_batch(head, place, batch, q, G, D, part);
    }
  }
}
