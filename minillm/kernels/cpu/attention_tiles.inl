// Attention of many queries, tile by tile: prefill. A tile is some queries, of all heads of a
// group, against KEY_TILE keys: two small matrix products with a running softmax between them, so
// that the (T, S) matrix of scores is never written. Tiles that no query sees are skipped.
// Source: Dao et al. 2022, arXiv 2205.14135, algorithm 1.

// Rows and vectors of a product whose sums stay in registers, with some to spare for operands.
constexpr int ROWS = MANY_REGISTERS ? 6 : 4;
constexpr int COLUMNS = MANY_REGISTERS ? 4 : 2;
constexpr int64_t QUERY_ROWS = 16 * ROWS;

// c[m][n] += Σ_k a[m][k] · b[k][n] for R rows and V vectors of columns.
template <int R, int V>
static inline void product_block(const float* a, int64_t lda, const float* b, int64_t ldb,
                                 int64_t depth, float* c, int64_t ldc) {
  vec total[R][V];
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) total[r][v] = load(c + r * ldc + v * WIDTH);
  for (int64_t k = 0; k < depth; k++) {
    vec row[V];
    for (int v = 0; v < V; v++) row[v] = load(b + k * ldb + v * WIDTH);
    for (int r = 0; r < R; r++) {
      const vec x = set1(a[r * lda + k]);
      for (int v = 0; v < V; v++) total[r][v] = fma(x, row[v], total[r][v]);
    }
  }
  for (int r = 0; r < R; r++)
    for (int v = 0; v < V; v++) store(c + r * ldc + v * WIDTH, total[r][v]);
}

template <int V>
static inline void product_columns(const float* a, int64_t lda, const float* b, int64_t ldb,
                                   int64_t depth, float* c, int64_t ldc, int64_t rows) {
  int64_t m = 0;
  for (; m + ROWS <= rows; m += ROWS) {
    product_block<ROWS, V>(a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc);
  }
  for (; m < rows; m++) product_block<1, V>(a + m * lda, lda, b, ldb, depth, c + m * ldc, ldc);
}

// c (rows, columns) += a (rows, depth) · b (depth, columns); columns is a multiple of WIDTH.
static void tile_product(const float* a, int64_t lda, const float* b, int64_t ldb, int64_t depth,
                         float* c, int64_t ldc, int64_t rows, int64_t columns) {
  int64_t n = 0;
  for (; n + COLUMNS * WIDTH <= columns; n += COLUMNS * WIDTH) {
    product_columns<COLUMNS>(a, lda, b + n, ldb, depth, c + n, ldc, rows);
  }
  for (; n < columns; n += WIDTH) {
    product_columns<1>(a, lda, b + n, ldb, depth, c + n, ldc, rows);
  }
}

static inline bool sees(int64_t query, int64_t key, Sight sight) {
  return key <= query && (!sight.window || query - key < sight.window || key < sight.sinks);
}

enum class Seen { NONE, SOME, ALL };

// Whether the queries at positions first … last see these keys, both in increasing order.
static Seen seen(int64_t first, int64_t last, const int64_t* keys, Sight sight) {
  const int64_t oldest = keys[0], newest = keys[KEY_TILE - 1];  // newest may be no key at all
  const bool sinks = oldest < sight.sinks;
  if (oldest > last) return Seen::NONE;
  if (sight.window && !sinks) {
    int64_t n = KEY_TILE - 1;
    while (keys[n] == INT64_MAX) n--;
    if (first - keys[n] >= sight.window) return Seen::NONE;
  }
  const bool near = !sight.window || last - oldest < sight.window;
  return newest <= first && near ? Seen::ALL : Seen::SOME;
}

// Scores (KEY_TILE,) become weights, and what was mixed before shrinks, as `weigh` does for decode.
static float weigh_tile(float* scores, float& highest_yet, float& total) {
  vec top = load(scores);
  for (int64_t i = WIDTH; i < KEY_TILE; i += WIDTH) top = maximum(load(scores + i), top);
  const float found = highest(top);
  const float most = found > highest_yet ? found : highest_yet;
  const float base = most == -INFINITY ? 0.0f : most;  // this query has seen no key yet
  vec added = zero();
  for (int64_t i = 0; i < KEY_TILE; i += WIDTH) {
    const vec x = exp(sub(load(scores + i), set1(base)));
    store(scores + i, x);
    added = add(added, x);
  }
  const float shrunk = highest_yet == -INFINITY ? 0.0f : expf(highest_yet - base);
  total = total * shrunk + sum(added);
  highest_yet = most;
  return shrunk;
}

static void attend_tile(const Unpacked& kv, const Queries& queries, Sight sight, float* scratch) {
  const int64_t G = queries.G, D = queries.D, rows = queries.count * G, width = kv.width;
  float* q = scratch;                  // (rows, width): row i·G + g is query i of head g
  float* mixed = q + rows * width;     // (rows, width)
  float* scores = mixed + rows * width;  // (rows, KEY_TILE)
  float* highest_yet = scores + rows * KEY_TILE;
  float* total = highest_yet + rows;
  for (int64_t r = 0; r < rows; r++) {
    const float* from = queries.q + r / G * queries.stride + r % G * D;
    for (int64_t d = 0; d < width; d++) q[r * width + d] = d < D ? from[d] : 0.0f;
    for (int64_t d = 0; d < width; d++) mixed[r * width + d] = 0.0f;
    highest_yet[r] = -INFINITY;
    total[r] = 0.0f;
  }
  const int64_t first = queries.positions[0], last = queries.positions[queries.count - 1];
  for (int64_t s = 0; s < kv.count; s += KEY_TILE) {
    const int64_t* keys = kv.positions + s;
    const Seen visible = seen(first, last, keys, sight);
    if (visible == Seen::NONE) continue;
    for (int64_t i = 0; i < rows * KEY_TILE; i++) scores[i] = 0.0f;
    tile_product(q, width, kv.keys + s * D, KEY_TILE, D, scores, KEY_TILE, rows, KEY_TILE);
    for (int64_t r = 0; r < rows; r++) {
      float* row = scores + r * KEY_TILE;
      const int64_t position = queries.positions[r / G];
      if (visible == Seen::SOME) {
        for (int64_t i = 0; i < KEY_TILE; i++) {
          if (!sees(position, keys[i], sight)) row[i] = -INFINITY;
        }
      }
      const float shrunk = weigh_tile(row, highest_yet[r], total[r]);
      if (shrunk == 1.0f) continue;
      for (int64_t d = 0; d < width; d += WIDTH) {
        store(mixed + r * width + d, mul(load(mixed + r * width + d), set1(shrunk)));
      }
    }
    const int64_t count = kv.count - s < KEY_TILE ? kv.count - s : KEY_TILE;
    tile_product(scores, KEY_TILE, kv.values + s * width, width, count, mixed, width, rows, width);
  }
  for (int64_t r = 0; r < rows; r++) {
    float* out = queries.out + r / G * queries.out_stride + r % G * D;
    for (int64_t d = 0; d < D; d++) out[d] = mixed[r * width + d] / total[r];
  }
}
