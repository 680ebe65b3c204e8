// The product of an unpacked panel with a tile of tokens, for AVX-512 with VNNI. See many.inl.

// Signed codes are raised by 128 here too, for which 128 · Σ xcode is taken off first.
template <int BITS>
static void unpack_block(const Weight& w, const uint8_t* head, const uint8_t* block,
                         PanelBlock* out) {
  vec scale, minimum;
  read_head(w, head, &scale, &minimum);
  store(out->scale, scale);
  store(out->minimum, minimum);
  MINILLM_UNROLL
  for (int q = 0; q < BITS; q++) {
    const __m512i codes = _mm512_loadu_si512(block + 64 * q);
    if (BITS == 8) {
      _mm512_store_si512(out->codes[q], _mm512_xor_si512(codes, _mm512_set1_epi8(-128)));
    } else {
      const __m512i low = _mm512_set1_epi8(15);
      _mm512_store_si512(out->codes[q], _mm512_and_si512(codes, low));
      _mm512_store_si512(out->codes[q + 4], _mm512_and_si512(_mm512_srli_epi16(codes, 4), low));
    }
  }
}

// out (T, 16) += Σ over `size` blocks.
template <int BITS, int T>
static void tile_product(const TileBlock* x, const PanelBlock* w, int64_t size, float* out) {
  vec result[T];
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) result[t] = load(out + t * PANEL);
  for (; size > 0; size--, x++, w++) {
    __m512i sums[T];
    MINILLM_UNROLL
    for (int t = 0; t < T; t++) sums[t] = _mm512_set1_epi32(BITS == 8 ? -128 * x->sum[t] : 0);
    MINILLM_UNROLL
    for (int q = 0; q < 8; q++) {
      const __m512i codes = _mm512_load_si512(w->codes[q]);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        sums[t] = _mm512_dpbusd_epi32(sums[t], codes, repeat4(x->codes[q][t]));
      }
    }
    const vec scale = load(w->scale), minimum = load(w->minimum);
    MINILLM_UNROLL
    for (int t = 0; t < T; t++) {
      const vec product = fma(minimum, set1(x->total[t]), result[t]);
      result[t] = fma(mul(scale, set1(x->scale[t])), _mm512_cvtepi32_ps(sums[t]), product);
    }
  }
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) store(out + t * PANEL, result[t]);
}
