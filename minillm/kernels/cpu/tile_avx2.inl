// The product of an unpacked panel with a tile of tokens, for AVX2. See many.inl.

template <int BITS>
static void unpack_block(const Weight& w, const uint8_t* head, const uint8_t* block,
                         PanelBlock* out) {
  const __m256i low = _mm256_set1_epi8(15);
  MINILLM_UNROLL
  for (int h = 0; h < 2; h++) {
    vec scale, minimum;
    read_head(w, head, h, &scale, &minimum);
    store(out->scale + 8 * h, scale);
    store(out->minimum + 8 * h, minimum);
    MINILLM_UNROLL
    for (int q = 0; q < BITS; q++) {
      const auto* from = reinterpret_cast<const __m256i*>(block + 64 * q + 32 * h);
      const __m256i codes = _mm256_loadu_si256(from);
      auto* to = reinterpret_cast<__m256i*>(out->codes[q][8 * h]);
      if (BITS == 8) {
        _mm256_store_si256(to, codes);
      } else {
        _mm256_store_si256(to, _mm256_and_si256(codes, low));
        _mm256_store_si256(to + 8, _mm256_and_si256(_mm256_srli_epi16(codes, 4), low));
      }
    }
  }
}

// Σ code · xcode of a block for 8 rows and the first T tokens of a tile.
template <int BITS, int T>
static inline void tile_sums(const TileBlock* x, const uint8_t* codes, __m256i* sums) {
  const __m256i ones = _mm256_set1_epi16(1);
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) sums[t] = _mm256_setzero_si256();
  MINILLM_UNROLL
  for (int q = 0; q < 8; q++) {
    const __m256i w = _mm256_load_si256(reinterpret_cast<const __m256i*>(codes + 64 * q));
    MINILLM_UNROLL
    for (int t = 0; t < T; t++) {
      const __m256i v = repeat4(x->codes[q][t]);
      if (BITS == 4) {
        sums[t] = _mm256_add_epi16(sums[t], _mm256_maddubs_epi16(w, v));
      } else {
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(v, w));
        sums[t] = _mm256_add_epi32(sums[t], _mm256_madd_epi16(pairs, ones));
      }
    }
  }
  if (BITS == 8) return;
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) sums[t] = _mm256_madd_epi16(sums[t], ones);
}

// out (T, 16) += Σ over `size` blocks.
template <int BITS, int T>
static void tile_product(const TileBlock* x, const PanelBlock* w, int64_t size, float* out) {
  MINILLM_UNROLL
  for (int h = 0; h < 2; h++) {
    vec result[T];
    MINILLM_UNROLL
    for (int t = 0; t < T; t++) result[t] = load(out + t * PANEL + 8 * h);
    for (int64_t b = 0; b < size; b++) {
      __m256i sums[T];
      tile_sums<BITS, T>(x + b, w[b].codes[0][8 * h], sums);
      const vec scale = load(w[b].scale + 8 * h), minimum = load(w[b].minimum + 8 * h);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        const vec product = fma(minimum, set1(x[b].total[t]), result[t]);
        result[t] = fma(mul(scale, set1(x[b].scale[t])), _mm256_cvtepi32_ps(sums[t]), product);
      }
    }
    MINILLM_UNROLL
    for (int t = 0; t < T; t++) store(out + t * PANEL + 8 * h, result[t]);
  }
}
