// A batch of keys on its way through attention of one query per head: what is kept of it, how its
// rows are read and asked for, and the running softmax.

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
  const uint16_t *key_scales, *key_minima;  // of codes: by block and channel
  const uint16_t *scales, *minima;          // of values that are codes: by token and group
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

// Asks memory for what is read soon, while there is still work to do until then: the processor
// guesses too, but begins anew with each batch and each page. Behind the last row this is in vain,
// and does no harm. CACHE: 2 for the second-level cache, 3 for what has room in the first.
template <int CACHE = 2>
static inline void ask_for(const void* at, int64_t bytes) {
#if defined(__GNUC__)
  const auto* line = static_cast<const uint8_t*>(at);
  for (int64_t i = 0; i < bytes; i += 64) __builtin_prefetch(line + i, 0, CACHE);
#else
  (void)at, (void)bytes;
#endif
}
constexpr int64_t AHEAD = 96;  // rows, where keys and values are numbers

// Scores of N heads, from head `first` of the part on, become weights. Where one of them is the
// highest so far, what was summed before shrinks: by shrunk[h].
template <int N>
static void weigh(Batch& batch, int64_t first, const Part& part, float* shrunk) {
  vec top[N], added[N], base[N];
  for (int h = 0; h < N; h++) {
    top[h] = load(batch.weight[h]);
    added[h] = zero();
  }
  for (int64_t i = WIDTH; i < batch.size; i += WIDTH) {
    for (int h = 0; h < N; h++) top[h] = maximum(load(batch.weight[h] + i), top[h]);
  }
  float* highest_yet = part.highest + first;
  for (int h = 0; h < N; h++) {
    const float found = highest(top[h]);
    const float most = found > highest_yet[h] ? found : highest_yet[h];
    const float least = most == -INFINITY ? 0.0f : most;  // no key has counted yet
    base[h] = set1(least);
    shrunk[h] = most == highest_yet[h] ? 1.0f : expf(highest_yet[h] - least);
    highest_yet[h] = most;
  }
  for (int64_t i = 0; i < batch.size; i += WIDTH) {
    for (int h = 0; h < N; h++) {
      const vec x = exp(sub(load(batch.weight[h] + i), base[h]));
      store(batch.weight[h] + i, x);
      added[h] = add(added[h], x);
    }
  }
  for (int h = 0; h < N; h++) {
    float& total = part.total[first + h];
    total = total * shrunk[h] + sum(added[h]);
  }
}
