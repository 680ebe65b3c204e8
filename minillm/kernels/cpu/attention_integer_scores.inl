// Scores of keys that are codes, in whole numbers (attention_integers.inl).

// N queries times the scales of a batch's blocks, by block, as bytes of channels in their order.
template <int N, int F>
struct Query {
  alignas(64) int8_t high[BATCH / BLOCK][N][F * ROW], low[BATCH / BLOCK][N][F * ROW];
  float constant[N][WIDTH];  // q · minimum, by block
  float unit[N];
};

// Vector j: of 64 numbers those at 4·i + order[j], as `split` puts the four of them side by side.
static inline ints every_fourth(int j) {
  const ints i = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  constexpr int order[4] = {0, 2, 1, 3};
  return _mm512_add_epi32(_mm512_slli_epi32(i, 2), _mm512_set1_epi32(order[j]));
}
static inline void load_fourths(const float* x, vec* y) {
  for (int j = 0; j < 4; j++) {
    const ints at = every_fourth(j);
    const vec low = _mm512_permutex2var_ps(load(x), at, load(x + WIDTH));
    const vec high = _mm512_permutex2var_ps(load(x + 2 * WIDTH), at, load(x + 3 * WIDTH));
    y[j] = _mm512_mask_blend_ps(0xff00, low, high);
  }
}
static inline void load_fourths(const uint16_t* x, vec* y) {
  const ints a = _mm512_loadu_si512(x), b = _mm512_loadu_si512(x + 32);
  for (int j = 0; j < 4; j++) {
    const ints at = _mm512_slli_epi32(every_fourth(j), 16);
    y[j] = _mm512_castsi512_ps(_mm512_maskz_permutex2var_epi16(0xaaaaaaaa, a, at, b));
  }
}

// Meanwhile the scales and minima of the batch that comes next are asked for.
template <int N, int F>
static void scale_queries(const Batch& batch, const float* q, Query<N, F>& to) {
  constexpr int64_t D = F * ROW, BLOCKS = BATCH / BLOCK;
  vec scaled[BLOCKS][N][F][4], constant[N][BLOCKS], x[N][F][4], most[N];
  for (int h = 0; h < N; h++) {
    most[h] = zero();
    for (vec& sum : constant[h]) sum = zero();
    for (int f = 0; f < F; f++) load_fourths(q + h * D + f * ROW, x[h][f]);
  }
  const int64_t blocks = batch.size / BLOCK;
  for (int64_t b = 0; b < blocks; b++) {
    ask_for<3>(batch.key_scales + (BLOCKS + b) * D, 2 * D);
    ask_for<3>(batch.key_minima + (BLOCKS + b) * D, 2 * D);
    for (int f = 0; f < F; f++) {
      vec scale[4], least[4];
      load_fourths(batch.key_scales + b * D + f * ROW, scale);
      load_fourths(batch.key_minima + b * D + f * ROW, least);
      for (int h = 0; h < N; h++) {
        for (int j = 0; j < 4; j++) {
          const vec y = mul(x[h][f][j], scale[j]);
          scaled[b][h][f][j] = y;
          most[h] = larger(most[h], y);
          constant[h][b] = fma(x[h][f][j], least[j], constant[h][b]);
        }
      }
    }
  }
  for (int h = 0; h < N; h++) {
    const vec four = fold(constant[h]), all[4] = {four, four, four, four};
    store(to.constant[h], sums(all));
    const float top = highest(most[h]);
    to.unit[h] = top / LARGEST;
    const vec units = set1(LARGEST / top);
    for (int64_t b = 0; b < blocks; b++) {
      for (int f = 0; f < F; f++) {
        const Split s = split(scaled[b][h][f], units);
        _mm512_store_si512(to.high[b][h] + f * ROW, s.high);
        _mm512_store_si512(to.low[b][h] + f * ROW, s.low);
      }
    }
  }
}

// From vectors j with 128 bits l to vectors l with 128 bits j.
static inline void transpose(ints* x) {
  const ints a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
  const ints c = _mm512_shuffle_i32x4(x[0], x[1], 0xee), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
  x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
  x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
  x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

// Of four keys: vector j holds in its l-th 128 bits the channels 16·l + 4·j … of each.
template <typename Source>
static inline void quads_of(const uint8_t* keys, int64_t row, int64_t d, ints* y) {
  ints x[4];
  for (int k = 0; k < 4; k++) x[k] = codes_of(Source(), keys + k * row, d);
  const ints a = _mm512_unpacklo_epi32(x[0], x[1]), b = _mm512_unpacklo_epi32(x[2], x[3]);
  const ints c = _mm512_unpackhi_epi32(x[0], x[1]), d_ = _mm512_unpackhi_epi32(x[2], x[3]);
  y[0] = _mm512_unpacklo_epi64(a, b);
  y[1] = _mm512_unpackhi_epi64(a, b);
  y[2] = _mm512_unpacklo_epi64(c, d_);
  y[3] = _mm512_unpackhi_epi64(c, d_);
}

// Of 16 keys: vector c holds the channels 4·c … 4·c + 3 of each.
template <typename Source>
static inline void all_quads_of(const uint8_t* keys, int64_t row, int64_t d, ints* y) {
  ints four[4][4];
  for (int k = 0; k < 4; k++) quads_of<Source>(keys + 4 * k * row, row, d, four[k]);
  for (int j = 0; j < 4; j++) {
    ints x[4] = {four[0][j], four[1][j], four[2][j], four[3][j]};
    transpose(x);
    for (int l = 0; l < 4; l++) y[4 * l + j] = x[l];
  }
}

// -infinity behind the last key. Meanwhile the keys of the batch that comes next are asked for.
template <typename Source, int N, int F>
static void score_integers(Batch& batch, const float* q) {
  constexpr int64_t D = F * ROW, row = Source::row_bytes(D);
  Query<N, F> query;
  scale_queries<N, F>(batch, q, query);
  for (int64_t i = 0; i < batch.size; i += WIDTH) {
    const int64_t b = i / BLOCK;
    ints high[N], low[N];
    for (int h = 0; h < N; h++) high[h] = low[h] = _mm512_setzero_si512();
    for (int f = 0; f < F; f++) {
      ints quads[16];
      all_quads_of<Source>(batch.keys + i * row, row, f * ROW, quads);
      for (int c = 0; c < 16; c++) {
        if (f == 0) ask_for(batch.keys + (BATCH + i + c) * row, row);
        for (int h = 0; h < N; h++) {
          dot(high[h], quads[c], query.high[b][h] + f * ROW + 4 * c);
          dot(low[h], quads[c], query.low[b][h] + f * ROW + 4 * c);
        }
      }
    }
    for (int h = 0; h < N; h++) {
      const ints sum = _mm512_add_epi32(_mm512_slli_epi32(high[h], 8), low[h]);
      const vec unit = set1(query.unit[h]);
      store(batch.weight[h] + i, fma(_mm512_cvtepi32_ps(sum), unit, set1(query.constant[h][b])));
    }
  }
  for (int h = 0; h < N; h++) {
    for (int64_t i = batch.count; i < batch.size; i++) batch.weight[h][i] = -INFINITY;
  }
}
