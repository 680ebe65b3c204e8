// Attention of one query per head, straight on the cache: decode. The heads of a group share keys,
// so each key is read, and made a vector of floats, once for several heads. Keys are taken 128 at
// a time (`Batch`): their scores, then the running softmax, then their values.
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

constexpr int THREE = HEADS < 3 ? HEADS : 3;  // where there are fewer, that case never comes

constexpr int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }

// The keys that are being worked on, one behind the other: at most BATCH of them, so that their
// weights stay close by, but more than a block, since each batch costs sums across vectors. One
// that doesn't begin with a block of codes ends with it.
constexpr int64_t BATCH = 4 * BLOCK;
using Weights = float[HEADS][BATCH];

struct Batch {
  int64_t count, size;              // size: `count` rounded up to whole blocks
  const uint8_t *keys, *values;     // rows, one behind the other
  const uint16_t *scales, *minima;  // of values that are codes, by token and group
  Weights weight;                   // scores, then e^(score - highest)
  Weights group[2];                 // weight · scale, of one group of channels or two
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

// Asks for the row that comes so many rows later, while there is still work to do until then, where
// the source wants that. The processor guesses too, and rows of numbers it guesses better alone.
constexpr int64_t AHEAD = 48;
template <typename Source>
static inline void ask_for(const uint8_t* row, int64_t bytes) {
#if defined(__GNUC__)
  if (!Source::ASKS) return;
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(row + AHEAD * bytes + i, 0, 2);
#endif
}

// parts[h] = the four vectors whose sums are start[h] + q[h] · keys[i …], folded into one, for N
// heads and KEYS keys from i on; q (N, D). `start` counts with all of its lanes.
template <typename Source, int N>
static inline void score_keys(const Batch& batch, const float* q, const vec* start, int64_t D,
                              int64_t i, vec (*parts)[WIDTH / KEYS], int64_t part) {
  const int64_t row = Source::row_bytes(D);
  const uint8_t* keys[KEYS];  // past the last key, the last one again: nobody sees its score
  for (int k = 0; k < KEYS; k++) {
    keys[k] = batch.keys + (i + k < batch.count ? i + k : batch.count - 1) * row;
    ask_for<Source>(keys[k], row);
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

// Scores (size,), a multiple of BLOCK, become weights. Where one of them is the highest so far,
// what was summed before shrinks: returns by how much.
static inline float weigh(float* weight, int64_t size, float& highest_yet, float& total) {
  vec top = load(weight);
  for (int64_t i = WIDTH; i < size; i += WIDTH) top = maximum(load(weight + i), top);
  const float found = highest(top);
  const float most = found > highest_yet ? found : highest_yet;
  const float base = most == -INFINITY ? 0.0f : most;  // no key has counted yet
  vec added = zero();
  for (int64_t i = 0; i < size; i += WIDTH) {
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
    if (d == 0) ask_for<Source>(batch.values + i * row, row);
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

// Scales, or minima, of a batch's values in group g of `groups`, 0 behind the last value.
static inline void read_scales(const uint16_t* scales, int64_t count, int64_t size, int64_t g,
                               int64_t groups, float* y) {
  int64_t i = 0;
  if (groups == 2) {  // 64 channels
    for (; i + WIDTH <= count; i += WIDTH) {
      const auto* pairs = reinterpret_cast<const bfloat16*>(scales + 2 * i);
      store(y + i, g ? load_odd(pairs) : load_even(pairs));
    }
  }
  for (; i < count; i++) y[i] = wide(scales[i * groups + g]);
  for (; i < size; i++) y[i] = 0.0f;
}

// The weights times the scales of group g, and what its minima add.
template <int N>
static inline void weigh_group(Batch& batch, int64_t g, int64_t groups, Weights& weights,
                               float* least) {
  float scale[BATCH], minimum[BATCH];
  read_scales(batch.scales, batch.count, batch.size, g, groups, scale);
  read_scales(batch.minima, batch.count, batch.size, g, groups, minimum);
  for (int h = 0; h < N; h++) {
    vec total = zero();
    for (int64_t i = 0; i < batch.size; i += WIDTH) {
      const vec weight = load(batch.weight[h] + i);
      store(weights[h] + i, mul(weight, load(scale + i)));
      total = fma(weight, load(minimum + i), total);
    }
    least[h] = sum(total);
  }
}

// Values that are codes: their scales go into the weights and their minima are summed apart. Two
// groups at a time where registers hold both: more sums that don't wait for each other.
template <typename Source, int N>
static void mix_codes(Batch& batch, const float* shrunk, float* mixed, int64_t channels,
                      int64_t D) {
  constexpr int64_t HALF = CHUNK / 2 * WIDTH;
  const int64_t groups = D / channels;
  float least[2][HEADS];
  if (channels == HALF && groups % 2 == 0) {
    for (int64_t g = 0; g < groups; g += 2) {
      weigh_group<N>(batch, g, groups, batch.group[0], least[0]);
      weigh_group<N>(batch, g + 1, groups, batch.group[1], least[1]);
      mix_values<Source, N, CHUNK, 2>(batch, batch.group, shrunk, least, mixed, g * HALF, D);
    }
    return;
  }
  for (int64_t g = 0; g < groups; g++) {
    weigh_group<N>(batch, g, groups, batch.group[0], least[0]);
    const int64_t d = g * channels;
    mix<Source, N>(batch, batch.group[0], shrunk, least, mixed, d, d + channels, D);
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
  for (int h = 0; h < N; h++) {
    const int64_t g = first + h;
    shrunk[h] = weigh(batch.weight[h], batch.size, part.highest[g], part.total[g]);
  }
  mix<Source, N>(batch, batch.weight, shrunk, none, part.mixed + first * D, 0, D, D);
}

// Scores of one block of a batch of codes, from key i on. Its keys have scales and minima (D,).
template <typename Source, int N>
static void score_block(Batch& batch, const float* q, int64_t D, const float* key_scales,
                        const float* key_minima, int64_t i) {
  float scaled[N * MAX_HEAD];
  vec start[N];  // q · minimum, as a vector that is summed up with the products
  for (int h = 0; h < N; h++) {
    vec constant = zero();
    for (int64_t d = 0; d < D; d += WIDTH) {  // D is a multiple of WIDTH here
      const vec x = load(q + h * D + d);
      store(scaled + h * D + d, mul(x, load(key_scales + d)));
      constant = fma(x, load(key_minima + d), constant);
    }
    start[h] = constant;
  }
  score<Source, N>(batch, scaled, start, D, i, i + BLOCK);
}

// The same against a batch of codes; scales and minima of keys: (blocks, D).
template <typename Source, int N>
static void attend_codes(Batch& batch, const float* q, int64_t first, int64_t D,
                         const float* key_scales, const float* key_minima, int64_t channels,
                         const Part& part) {
  float shrunk[N];
  for (int64_t i = 0; i < batch.size; i += BLOCK) {
    const int64_t block = i / BLOCK * D;
    score_block<Source, N>(batch, q + first * D, D, key_scales + block, key_minima + block, i);
  }
  for (int h = 0; h < N; h++) {
    const int64_t g = first + h;
    shrunk[h] = weigh(batch.weight[h], batch.size, part.highest[g], part.total[g]);
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

template <typename Source>
static void attend_code_batch(Batch& batch, const float* q, int64_t G, int64_t D,
                              const uint16_t* scales, const uint16_t* minima, int64_t channels,
                              const Part& part) {
  float s[BATCH / BLOCK * MAX_HEAD], m[BATCH / BLOCK * MAX_HEAD];
  widen({scales, Numbers::BFLOAT16}, batch.size / BLOCK * D, s);
  widen({minima, Numbers::BFLOAT16}, batch.size / BLOCK * D, m);
  for (int64_t g = 0; g < G; g += HEADS) {
    switch (G - g < HEADS ? G - g : HEADS) {
      case 1: attend_codes<Source, 1>(batch, q, g, D, s, m, channels, part); break;
      case 2: attend_codes<Source, 2>(batch, q, g, D, s, m, channels, part); break;
      case 3: attend_codes<Source, THREE>(batch, q, g, D, s, m, channels, part); break;
      default: attend_codes<Source, HEADS>(batch, q, g, D, s, m, channels, part);
    }
  }
}

static inline bool through_floats(const CacheForm& form, int64_t D) {
  return form.bits && (form.key_channels || D % WIDTH || form.value_channels % WIDTH);
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
  if (through_floats(form, D)) {
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
  const int64_t most = through_floats(*head.form, D) ? BLOCK : BATCH;
  for (int64_t r = 0; r < num_runs; r++) {
    const int64_t end = runs[r].first + runs[r].count;
    for (int64_t place = runs[r].first; place < end; place += batch.count) {
      int64_t border = end;
      if (place < head.full) {
        border = least_of(place % BLOCK ? place + BLOCK - place % BLOCK : head.full, end);
      }
      batch.count = least_of(border - place, most);
      batch.size = (batch.count + BLOCK - 1) / BLOCK * BLOCK;
      attend_batch(head, place, batch, q, G, D, part);
    }
  }
}
