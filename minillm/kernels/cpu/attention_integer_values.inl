// Values that are codes, mixed in whole numbers (attention_integers.inl).

// Weights of a batch times the scales of one group of channels; quads of tokens lie as `split` puts
// them. least: Σ weight · minimum.
struct SplitWeights {
  alignas(64) int8_t high[BATCH], low[BATCH];
  float unit, least;
};

template <int N>
static void split_weights(const Batch& batch, int64_t group, int64_t groups,
                          SplitWeights (*to)[2], int g) {
  float scale[BATCH], minimum[BATCH];
  read_scales(batch.scales, batch.count, batch.size, group, groups, scale);
  read_scales(batch.minima, batch.count, batch.size, group, groups, minimum);
  vec x[N][BATCH / WIDTH], total[N], most[N];
  for (int h = 0; h < N; h++) total[h] = most[h] = zero();
  for (int64_t i = 0; i < BATCH / WIDTH; i++) {
    if (group == 0) {  // for the batch that comes next
      ask_for<3>(batch.scales + (BATCH + i * WIDTH) * groups, 2 * WIDTH * groups);
      ask_for<3>(batch.minima + (BATCH + i * WIDTH) * groups, 2 * WIDTH * groups);
    }
    for (int h = 0; h < N; h++) {
      x[h][i] = zero();
      if (i * WIDTH >= batch.size) continue;
      const vec weight = load(batch.weight[h] + i * WIDTH);
      x[h][i] = mul(weight, load(scale + i * WIDTH));
      total[h] = fma(weight, load(minimum + i * WIDTH), total[h]);
      most[h] = maximum(x[h][i], most[h]);
    }
  }
  for (int h = 0; h < N; h++) {
    const float top = highest(most[h]);
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

// Values at four tokens 16 apart that are side by side in `split`. Where only the first two are
// there, these stand for the others, whose weights are 0.
template <typename Source, int64_t ROW_BYTES>
static inline void four_values(const Batch& batch, int64_t at, int64_t d, ints* x) {
  const int64_t first = at / ROW * ROW + at % ROW / 4;
  const uint8_t* a = batch.values + first * ROW_BYTES;
  const uint8_t* b = first + 32 < batch.size ? a + 32 * ROW_BYTES : a;
  x[0] = codes_of(Source(), a, d);
  x[1] = codes_of(Source(), b, d);
  x[2] = codes_of(Source(), a + 16 * ROW_BYTES, d);
  x[3] = codes_of(Source(), b + 16 * ROW_BYTES, d);
}

// Vector j holds in its l-th 128 bits the channels 16·l + 4·j … 16·l + 4·j + 3, the four codes of a
// channel side by side.
static inline void channels_of(const ints* x, ints* y) {
  const ints a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
  const ints c = _mm512_unpacklo_epi8(x[2], x[3]), d_ = _mm512_unpackhi_epi8(x[2], x[3]);
  y[0] = _mm512_unpacklo_epi16(a, c);
  y[1] = _mm512_unpackhi_epi16(a, c);
  y[2] = _mm512_unpacklo_epi16(b, d_);
  y[3] = _mm512_unpackhi_epi16(b, d_);
}

// Channels 64·f … 64·f + 63 of the values, which are two groups.
template <typename Source, int N, int F>
static void mix_row(const Batch& batch, const SplitWeights (*weights)[2], const float* shrunk,
                    float* mixed, int f) {
  constexpr int64_t D = F * ROW, row = Source::row_bytes(D);
  ints high[N][4], low[N][4];
  for (int h = 0; h < N; h++) {
    for (int j = 0; j < 4; j++) high[h][j] = low[h][j] = _mm512_setzero_si512();
  }
  const int64_t end = (batch.size + ROW - 1) / ROW * ROW;
  for (int64_t at = 0; at < end; at += 4) {
    if (f == 0) ask_for(batch.values + (BATCH + at) * row, 4 * row);  // of the next batch
    ints x[4], value[4];
    four_values<Source, row>(batch, at, f * ROW, x);
    channels_of(x, value);
    for (int h = 0; h < N; h++) {
      const SplitWeights* w = weights[h];
      const ints large = weights_of(w[0].high + at, w[1].high + at);
      for (int j = 0; j < 4; j++) dot(high[h][j], value[j], large);
      const ints small = weights_of(w[0].low + at, w[1].low + at);
      for (int j = 0; j < 4; j++) dot(low[h][j], value[j], small);
    }
  }
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
static void mix_integers(const Batch& batch, const float* shrunk, float* mixed) {
  for (int f = 0; f < F; f++) {
    SplitWeights weights[N][2];
    for (int g = 0; g < 2; g++) {
      split_weights<N>(batch, 2 * f + g, 2 * F, weights, g);
    }
    mix_row<Source, N, F>(batch, weights, shrunk, mixed, f);
  }
}
