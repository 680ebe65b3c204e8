// Values that are codes, mixed in whole numbers (attention_integers.inl).

// Weights of a batch times the scales of one group of channels; quads of tokens lie as `split` puts
// them. least: Σ weight · minimum.
struct SplitWeights {
  alignas(64) int8_t high[BATCH], low[BATCH];
  float unit, least;
};

template <typename Source, int N>
static void split_weights(const Batch& batch, int64_t group, int64_t groups,
                                 SplitWeights (*to)[2], int g, Ahead<Source>& ahead) {
  float scale[BATCH], minimum[BATCH];
  read_scales(batch.scales, batch.count, batch.size, group, groups, scale);
  read_scales(batch.minima, batch.count, batch.size, group, groups, minimum);
  vec x[N][BATCH / WIDTH], total[N];
  ints most[N];
  for (int h = 0; h < N; h++) {
    total[h] = zero();
    most[h] = _mm512_setzero_si512();
  }
  for (int64_t i = 0; i < BATCH / WIDTH; i++) {
    for (int h = 0; h < N; h++) {
      x[h][i] = zero();
      if (i * WIDTH >= batch.size) continue;
      const vec weight = load(batch.weight[h] + i * WIDTH);
      x[h][i] = mul(weight, load(scale + i * WIDTH));
      total[h] = fma(weight, load(minimum + i * WIDTH), total[h]);
      most[h] = larger(most[h], x[h][i]);
    }
    ahead.ask(2);
  }
  for (int h = 0; h < N; h++) {
    const float top = largest(most[h]);
    const vec units = set1(LARGEST / top);
    SplitWeights& w = to[h][g];
    w.unit = top / LARGEST;
    w.least = sum(total[h]);
    for (int64_t i = 0; i < BATCH; i += ROW) {
      const Split s = split(x[h] + i / WIDTH, units);
      _mm512_store_si512(w.high + i, s.high);
      _mm512_store_si512(w.low + i, s.low);
    }
  }
}

// A quad of the first group's weights for channels 0 to 31, one of the second's for 32 to 63.
static inline ints weights_of(const int8_t* first, const int8_t* second) {
  int32_t a, b;
  std::memcpy(&a, first, 4);
  std::memcpy(&b, second, 4);
  return _mm512_mask_set1_epi32(_mm512_set1_epi32(a), 0xff00, b);
}

// Of four values: vector j holds in its l-th 128 bits the channels 16·l + 4·j … 16·l + 4·j + 3, the
// codes of a channel side by side.
template <typename Source>
static inline void channels_of(const uint8_t* values, int64_t row, int64_t d, ints* y) {
  ints x[4];
  for (int i = 0; i < 4; i++) x[i] = codes_of(Source(), values + i * row, d);
  const ints a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
  const ints c = _mm512_unpacklo_epi8(x[2], x[3]), d_ = _mm512_unpackhi_epi8(x[2], x[3]);
  y[0] = _mm512_unpacklo_epi16(a, c);
  y[1] = _mm512_unpackhi_epi16(a, c);
  y[2] = _mm512_unpacklo_epi16(b, d_);
  y[3] = _mm512_unpackhi_epi16(b, d_);
}

// From vectors j with 128 bits l to vectors l with 128 bits j: channels in their order.
static inline void transpose(ints* x) {
  const ints a = _mm512_shuffle_i32x4(x[0], x[1], 0x44), b = _mm512_shuffle_i32x4(x[2], x[3], 0x44);
  const ints c = _mm512_shuffle_i32x4(x[0], x[1], 0xee), d = _mm512_shuffle_i32x4(x[2], x[3], 0xee);
  x[0] = _mm512_shuffle_i32x4(a, b, 0x88);
  x[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
  x[2] = _mm512_shuffle_i32x4(c, d, 0x88);
  x[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

// Channels 64·f … 64·f + 63 of the values, which are two groups.
template <typename Source, int N, int F>
static void mix_row(const Batch& batch, const SplitWeights (*weights)[2],
                           const float* shrunk, float* mixed, int f, Ahead<Source>& ahead) {
  constexpr int64_t D = F * ROW, row = Source::row_bytes(D);
  ints high[N][4], low[N][4];
  for (int h = 0; h < N; h++) {
    for (int j = 0; j < 4; j++) high[h][j] = low[h][j] = _mm512_setzero_si512();
  }
  int64_t quad = 0;
  do {
    ahead.ask(4);
    ints value[4];
    channels_of<Source>(batch.values + 4 * quad * row, row, f * ROW, value);
    const int64_t at = 4 * (quad / 16 * 16 + quad % 4 * 4 + quad / 4 % 4);  // see `split`
    for (int h = 0; h < N; h++) {
      const SplitWeights* w = weights[h];
      const ints x = weights_of(w[0].high + at, w[1].high + at);
      for (int j = 0; j < 4; j++) dot(high[h][j], value[j], x);
      const ints y = weights_of(w[0].low + at, w[1].low + at);
      for (int j = 0; j < 4; j++) dot(low[h][j], value[j], y);
    }
  } while (++quad < batch.size / 4);
  for (int h = 0; h < N; h++) {
    ints sum[4];
    for (int j = 0; j < 4; j++) {
      sum[j] = _mm512_add_epi32(_mm512_slli_epi32(high[h][j], 8), low[h][j]);
    }
    transpose(sum);
    for (int l = 0; l < 4; l++) {
      const SplitWeights& w = weights[h][l / 2];
      float* y = mixed + h * D + f * ROW + l * WIDTH;
      const vec before = fma(load(y), set1(shrunk[h]), set1(w.least));
      store(y, fma(_mm512_cvtepi32_ps(sum[l]), set1(w.unit), before));
    }
  }
}

template <typename Source, int N, int F>
static void mix_integers(const Batch& batch, const float* shrunk, float* mixed,
                         Ahead<Source>& ahead) {
  for (int f = 0; f < F; f++) {
    SplitWeights weights[N][2];
    for (int g = 0; g < 2; g++) {
      split_weights<Source, N>(batch, 2 * f + g, 2 * F, weights, g, ahead);
    }
    mix_row<Source, N, F>(batch, weights, shrunk, mixed, f, ahead);
  }
}
