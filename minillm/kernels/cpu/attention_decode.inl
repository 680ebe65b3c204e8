// Attention of one query per head, straight on the cache: decode. The heads of a group share keys,
// so each key is read, and made a vector of floats, once for several heads. Keys are taken 32 at a
// time (`Batch`): their scores, then the running softmax, then their values.
//
// Codes are never turned back into keys. With key = code · scale + minimum, channel by channel,
//   q · key = (q · scale) · code + q · minimum,
// so that the scales of a block go into the query; and a value's scales into its weight.

// How much is kept in registers: heads that are worked on together, keys whose sums are open, and
// vectors of a value. AVX-512 and NEON have 32 registers, others 16.
#if defined(__aarch64__)
constexpr bool MANY_REGISTERS = true;
#else
constexpr bool MANY_REGISTERS = WIDTH == 16;
#endif
constexpr int HEADS = MANY_REGISTERS ? 4 : 2;
constexpr int KEYS = 4;
constexpr int CHUNK = MANY_REGISTERS ? 4 : 2;

constexpr int least_of(int a, int b) { return a < b ? a : b; }

// The 32 keys (or fewer) that are being worked on.
struct Batch {
  int64_t count;
  const uint8_t *keys, *values;     // rows, one behind the other
  const uint16_t *scales, *minima;  // of values that are codes, by token and group
  float weight[HEADS][BLOCK];       // scores, then e^(score - highest)
  float group[HEADS][BLOCK];        // weight · scale, of one group of channels
};

// Where rows are whole vectors, the test is gone when this is compiled.
template <typename Source>
static inline vec key_at(const uint8_t* row, int64_t d, int64_t D) {
  if constexpr (Source::WHOLE) return Source::read(row, d);
  else return Source::read_some(row, d, D - d);
}

template <typename Source>
static inline vec float_at(const float* x, int64_t d, int64_t D) {
  if constexpr (Source::WHOLE) return load(x + d);
  else return load_some(x + d, D - d);
}

// Asks for the row that comes so many rows later, while there is still work to do until then. The
// processor guesses too, but only within a page of memory, and a stream of rows crosses many.
constexpr int64_t AHEAD = 48;
static inline void ask_for(const uint8_t* row, int64_t bytes) {
#if defined(__GNUC__)
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + AHEAD * bytes + i);
#endif
}

// weight[h][i] += q[h] · keys[i], for N heads and KEYS keys from i on, or one; q (N, D).
template <typename Source, int N, int COUNT>
static inline void score_keys(Batch& batch, const float* q, int64_t D, int64_t i) {
  const int64_t row = Source::row_bytes(D);
  const uint8_t* keys = batch.keys + i * row;
  vec total[N][COUNT];
  for (int k = 0; k < COUNT; k++) ask_for(keys + k * row, row);
  for (int h = 0; h < N; h++)
    for (int k = 0; k < COUNT; k++) total[h][k] = zero();
  for (int64_t d = 0; d < D; d += WIDTH) {
    vec key[COUNT];
    for (int k = 0; k < COUNT; k++) key[k] = key_at<Source>(keys + k * row, d, D);
    for (int h = 0; h < N; h++) {
      const vec x = float_at<Source>(q + h * D, d, D);
      for (int k = 0; k < COUNT; k++) total[h][k] = fma(x, key[k], total[h][k]);
    }
  }
  for (int h = 0; h < N; h++) {
    if (COUNT == 4) add_sums(total[h], batch.weight[h] + i);
    else batch.weight[h][i] += sum(total[h][0]);
  }
}

template <typename Source, int N>
static void score(Batch& batch, const float* q, int64_t D) {
  int64_t i = 0;
  for (; i + KEYS <= batch.count; i += KEYS) score_keys<Source, N, KEYS>(batch, q, D, i);
  for (; i < batch.count; i++) score_keys<Source, N, 1>(batch, q, D, i);
}

// Scores (BLOCK,), -infinity past the last, become weights. Where one of them is the highest so
// far, what was summed before shrinks: returns by how much.
static inline float weigh(float* weight, float& highest_yet, float& total) {
  vec top = load(weight);
  for (int64_t i = WIDTH; i < BLOCK; i += WIDTH) top = maximum(load(weight + i), top);
  const float found = highest(top);
  const float most = found > highest_yet ? found : highest_yet;
  const float base = most == -INFINITY ? 0.0f : most;  // no key has counted yet
  vec added = zero();
  for (int64_t i = 0; i < BLOCK; i += WIDTH) {
    const vec x = exp(sub(load(weight + i), set1(base)));
    store(weight + i, x);
    added = add(added, x);
  }
  const float shrunk = most == highest_yet ? 1.0f : expf(highest_yet - base);
  total = total * shrunk + sum(added);
  highest_yet = most;
  return shrunk;
}

// mixed[h][d …] = mixed · shrunk[h] + least[h] + Σ_i weights[h][i] · value[i], for N heads and
// VECTORS vectors of channels from d on.
template <typename Source, int N, int VECTORS>
static inline void mix_values(const Batch& batch, const float (*weights)[BLOCK],
                              const float* shrunk, const float* least, float* mixed, int64_t d,
                              int64_t D) {
  vec total[N][VECTORS];
  for (int h = 0; h < N; h++) {
    for (int v = 0; v < VECTORS; v++) {
      const vec before = float_at<Source>(mixed + h * D, d + v * WIDTH, D);
      total[h][v] = fma(before, set1(shrunk[h]), set1(least[h]));
    }
  }
  const int64_t row = Source::row_bytes(D);
  for (int64_t i = 0; i < batch.count; i++) {
    if (d == 0) ask_for(batch.values + i * row, row);
    for (int v = 0; v < VECTORS; v++) {
      const vec value = key_at<Source>(batch.values + i * row, d + v * WIDTH, D);
      for (int h = 0; h < N; h++) total[h][v] = fma(set1(weights[h][i]), value, total[h][v]);
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
static void mix(const Batch& batch, const float (*weights)[BLOCK], const float* shrunk,
                const float* least, float* mixed, int64_t first, int64_t last, int64_t D) {
  int64_t d = first;
  for (; d + CHUNK * WIDTH <= last; d += CHUNK * WIDTH) {
    mix_values<Source, N, CHUNK>(batch, weights, shrunk, least, mixed, d, D);
  }
  for (; d + 2 * WIDTH <= last; d += 2 * WIDTH) {  // half of 64 channels: a group of 32
    mix_values<Source, N, 2>(batch, weights, shrunk, least, mixed, d, D);
  }
  for (; d < last; d += WIDTH) {
    mix_values<Source, N, 1>(batch, weights, shrunk, least, mixed, d, D);
  }
}

// Scales and minima of a batch's values in group g of `groups`, 0 behind the last value.
static inline void read_scales(const Batch& batch, int64_t g, int64_t groups, float* scale,
                               float* minimum) {
  for (int64_t i = 0; i < batch.count; i++) {
    scale[i] = wide(batch.scales[i * groups + g]);
    minimum[i] = wide(batch.minima[i * groups + g]);
  }
  for (int64_t i = batch.count; i < BLOCK; i++) scale[i] = minimum[i] = 0.0f;
}

// Values that are codes: group by group, its scales in the weights and its minima summed apart.
template <typename Source, int N>
static void mix_codes(Batch& batch, const float* shrunk, float* mixed, int64_t channels,
                      int64_t D) {
  const int64_t groups = D / channels;
  for (int64_t g = 0; g < groups; g++) {
    float scale[BLOCK], minimum[BLOCK], least[N];
    read_scales(batch, g, groups, scale, minimum);
    for (int h = 0; h < N; h++) {
      vec total = zero();
      for (int64_t i = 0; i < BLOCK; i += WIDTH) {
        const vec weight = load(batch.weight[h] + i);
        store(batch.group[h] + i, mul(weight, load(scale + i)));
        total = fma(weight, load(minimum + i), total);
      }
      least[h] = sum(total);
    }
    mix<Source, N>(batch, batch.group, shrunk, least, mixed, g * channels, (g + 1) * channels, D);
  }
}

template <int N>
static inline void begin_scores(Batch& batch, const float* start) {
  for (int h = 0; h < N; h++) {
    for (int64_t i = 0; i < BLOCK; i += WIDTH) store(batch.weight[h] + i, set1(start[h]));
    for (int64_t i = batch.count; i < BLOCK; i++) batch.weight[h][i] = -INFINITY;
  }
}

// N heads of a group, from head `first` of the part on, against a batch of exact numbers.
template <typename Source, int N>
static void attend_exact(Batch& batch, const float* q, int64_t first, int64_t D,
                         const Part& part) {
  const float none[N] = {};
  float shrunk[N];
  begin_scores<N>(batch, none);
  score<Source, N>(batch, q + first * D, D);
  for (int h = 0; h < N; h++) {
    shrunk[h] = weigh(batch.weight[h], part.highest[first + h], part.total[first + h]);
  }
  mix<Source, N>(batch, batch.weight, shrunk, none, part.mixed + first * D, 0, D, D);
}

// The same against a batch within a block of codes, whose keys have scales and minima (D,).
template <typename Source, int N>
static void attend_codes(Batch& batch, const float* q, int64_t first, int64_t D,
                         const float* key_scales, const float* key_minima, int64_t channels,
                         const Part& part) {
  float scaled[N * MAX_HEAD], start[N], shrunk[N];
  for (int h = 0; h < N; h++) {
    const float* x = q + (first + h) * D;
    vec constant = zero();
    for (int64_t d = 0; d < D; d += WIDTH) {  // D is a multiple of WIDTH here
      store(scaled + h * D + d, mul(load(x + d), load(key_scales + d)));
      constant = fma(load(x + d), load(key_minima + d), constant);
    }
    start[h] = sum(constant);
  }
  begin_scores<N>(batch, start);
  score<Source, N>(batch, scaled, D);
  for (int h = 0; h < N; h++) {
    shrunk[h] = weigh(batch.weight[h], part.highest[first + h], part.total[first + h]);
  }
  mix_codes<Source, N>(batch, shrunk, part.mixed + first * D, channels, D);
}

template <typename Source>
static void attend_exact_batch(Batch& batch, const float* q, int64_t G, int64_t D,
                               const Part& part) {
  for (int64_t g = 0; g < G; g += HEADS) {
    switch (G - g < HEADS ? G - g : HEADS) {
      case 1: attend_exact<Source, 1>(batch, q, g, D, part); break;
      case 2: attend_exact<Source, 2>(batch, q, g, D, part); break;
      case 3: attend_exact<Source, least_of(3, HEADS)>(batch, q, g, D, part); break;
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

template <typename Source>
static void attend_code_batch(Batch& batch, const float* q, int64_t G, int64_t D,
                              const uint16_t* scales, const uint16_t* minima, int64_t channels,
                              const Part& part) {
  float s[MAX_HEAD], m[MAX_HEAD];
  widen({scales, Numbers::BFLOAT16}, D, s);
  widen({minima, Numbers::BFLOAT16}, D, m);
  for (int64_t g = 0; g < G; g += HEADS) {
    switch (G - g < HEADS ? G - g : HEADS) {
      case 1: attend_codes<Source, 1>(batch, q, g, D, s, m, channels, part); break;
      case 2: attend_codes<Source, 2>(batch, q, g, D, s, m, channels, part); break;
      case 3: attend_codes<Source, least_of(3, HEADS)>(batch, q, g, D, s, m, channels, part); break;
      default: attend_codes<Source, HEADS>(batch, q, g, D, s, m, channels, part);
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
      case Numbers::BFLOAT16: return attend_numbers<bfloat16>(batch, q, G, D, part);
      case Numbers::FLOAT16: return attend_numbers<float16>(batch, q, G, D, part);
      default: return attend_numbers<float>(batch, q, G, D, part);
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
    return attend_numbers<float>(batch, q, G, D, part);
  }
  const int64_t channels = form.value_channels, at = place * (D / channels);
  const uint16_t* scales = head.keys.scales + place / BLOCK * D;
  const uint16_t* minima = head.keys.minima + place / BLOCK * D;
  batch.keys = head.keys.codes + place * D * form.bits / 8;
  batch.values = head.values.codes + place * D * form.bits / 8;
  batch.scales = head.values.scales + at;
  batch.minima = head.values.minima + at;
  if (form.bits == 8) {
    attend_code_batch<Codes8>(batch, q, G, D, scales, minima, channels, part);
  } else {
    attend_code_batch<Codes4>(batch, q, G, D, scales, minima, channels, part);
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
