// Scores of keys that are codes, in whole numbers (attention_integers.inl).

// A query times a block's scales, as the keys are multiplied: vectors j = 0 … 3 for each row.
template <int F>
struct Query {
  ints high[F][4], low[F][4];
};

// Vector j holds in its l-th 128 bits four times the quad of channels 4·(4·l + j) …
static inline void spread(ints x, ints* y) {
  const ints first = _mm512_set_epi32(3, 3, 3, 3, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0);
  for (int j = 0; j < 4; j++) {
    y[j] = _mm512_permutexvar_epi32(_mm512_add_epi32(first, _mm512_set1_epi32(4 * j)), x);
  }
}

// Of four keys: vector j holds in its l-th 128 bits the quad of channels 4·(4·l + j) … of each.
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

// total[h]: of four keys with query h. Number k of each 128 bits is a part of what key k gives.
template <typename Source, int N, int F>
static inline void score_four(const uint8_t* keys, const Query<F>* q, ints* total) {
  ints quads[F][4];
  for (int h = 0; h < N; h++) total[h] = _mm512_setzero_si512();
  for (int f = 0; f < F; f++) {
    quads_of<Source>(keys, Source::row_bytes(F * ROW), f * ROW, quads[f]);
    for (int h = 0; h < N; h++) {
      for (int j = 0; j < 4; j++) {
        dot(total[h], quads[f][j], q[h].high[f][j]);
      }
    }
  }
  for (int h = 0; h < N; h++) {
    total[h] = _mm512_slli_epi32(total[h], 8);
    for (int f = 0; f < F; f++) {
      for (int j = 0; j < 4; j++) {
        dot(total[h], quads[f][j], q[h].low[f][j]);
      }
    }
  }
}

// The sums over the four 128 bits of four such vectors, side by side: one for each of 16 keys.
static inline ints sums(ints a, ints b, ints c, ints d) {
  const ints ab =
      _mm512_add_epi32(_mm512_shuffle_i32x4(a, b, 0x44), _mm512_shuffle_i32x4(a, b, 0xee));
  const ints cd =
      _mm512_add_epi32(_mm512_shuffle_i32x4(c, d, 0x44), _mm512_shuffle_i32x4(c, d, 0xee));
  return _mm512_add_epi32(_mm512_shuffle_i32x4(ab, cd, 0x88), _mm512_shuffle_i32x4(ab, cd, 0xdd));
}

// N queries times the scales of the blocks of a batch, and times their minima.
template <int N, int64_t D>
struct Scaled {
  float q[N][BATCH / BLOCK][D];
  float constant[N][WIDTH];  // q · minimum, by block
  float unit[N], units[N];   // of q · scale, and how many are 1
};

template <int N, int64_t D>
static void scale_queries(const Batch& batch, const float* q, Scaled<N, D>& to) {
  vec constant[N][BATCH / BLOCK];
  ints most[N];
  for (int h = 0; h < N; h++) {
    most[h] = _mm512_setzero_si512();
    for (vec& x : constant[h]) x = zero();
  }
  for (int64_t b = 0; b < batch.size / BLOCK; b++) {
    for (int64_t d = 0; d < D; d += WIDTH) {
      const vec scale = load(reinterpret_cast<const bfloat16*>(batch.key_scales + b * D + d));
      const vec least = load(reinterpret_cast<const bfloat16*>(batch.key_minima + b * D + d));
      for (int h = 0; h < N; h++) {
        const vec x = load(q + h * D + d), scaled = mul(x, scale);
        store(to.q[h][b] + d, scaled);
        most[h] = larger(most[h], scaled);
        constant[h][b] = fma(x, least, constant[h][b]);
      }
    }
  }
  for (int h = 0; h < N; h++) {
    const vec four = fold(constant[h]), all[4] = {four, four, four, four};
    store(to.constant[h], sums(all));
    const float top = largest(most[h]);
    to.unit[h] = top / LARGEST;
    to.units[h] = LARGEST / top;
  }
}

// -infinity behind the last key.
template <typename Source, int N, int F>
static void score_integers(Batch& batch, const float* q, Ahead<Source>& ahead) {
  constexpr int64_t D = F * ROW, row = Source::row_bytes(D);
  Scaled<N, D> scaled;
  scale_queries<N, D>(batch, q, scaled);
  for (int64_t b = 0; b < batch.size / BLOCK; b++) {
    Query<F> query[N];
    for (int h = 0; h < N; h++) {
      for (int f = 0; f < F; f++) {
        vec x[4];
        for (int j = 0; j < 4; j++) x[j] = load(scaled.q[h][b] + f * ROW + j * WIDTH);
        const Split s = split(x, set1(scaled.units[h]));
        spread(s.high, query[h].high[f]);
        spread(s.low, query[h].low[f]);
      }
    }
    for (int64_t i = b * BLOCK; i < (b + 1) * BLOCK; i += WIDTH) {
      ints total[4][N];
      for (int k = 0; k < 4; k++) {
        ahead.ask(3);
        score_four<Source, N, F>(batch.keys + (i + 4 * k) * row, query, total[k]);
      }
      for (int h = 0; h < N; h++) {
        const ints sum = sums(total[0][h], total[1][h], total[2][h], total[3][h]);
        const vec unit = set1(scaled.unit[h]);
        store(batch.weight[h] + i, fma(_mm512_cvtepi32_ps(sum), unit, set1(scaled.constant[h][b])));
      }
    }
  }
  for (int h = 0; h < N; h++) {
    for (int64_t i = batch.count; i < batch.size; i++) batch.weight[h][i] = -INFINITY;
  }
}
