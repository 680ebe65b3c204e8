// The product of an unpacked panel with a tile of tokens, for NEON. See many.inl.

template <int BITS>
static void unpack_block(const Weight& w, const uint8_t* head, const uint8_t* block,
                         PanelBlock* out) {
  for (int v = 0; v < 4; v++) {
    vec scale, minimum;
    read_head(w, head, v, &scale, &minimum);
    store(out->scale + 4 * v, scale);
    store(out->minimum + 4 * v, minimum);
    for (int q = 0; q < BITS; q++) {
      const uint8x16_t codes = vld1q_u8(block + 64 * q + 16 * v);
      vst1q_u8(out->codes[q][4 * v], BITS == 4 ? vandq_u8(codes, vdupq_n_u8(15)) : codes);
      if (BITS == 4) vst1q_u8(out->codes[q + 4][4 * v], vshrq_n_u8(codes, 4));
    }
  }
}

// out (T, 16) += Σ over `size` blocks.
template <int BITS, int T>
static void tile_product(const TileBlock* x, const PanelBlock* w, int64_t size, float* out) {
  vec result[T][4];
  for (int t = 0; t < T; t++) {
    for (int v = 0; v < 4; v++) result[t][v] = load(out + t * PANEL + 4 * v);
  }
  for (; size > 0; size--, x++, w++) {
    int32x4_t sums[T][4];
    for (int t = 0; t < T; t++) {
      for (int v = 0; v < 4; v++) sums[t][v] = vdupq_n_s32(0);
    }
    MINILLM_UNROLL
    for (int q = 0; q < 8; q++) {
      MINILLM_UNROLL
      for (int v = 0; v < 4; v++) {
        const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(w->codes[q][4 * v]));
        MINILLM_UNROLL
        for (int t = 0; t < T; t++) {
          sums[t][v] = vdotq_s32(sums[t][v], codes, repeat4(x->codes[q][t]));
        }
      }
    }
    MINILLM_UNROLL
    for (int v = 0; v < 4; v++) {
      const vec scale = load(w->scale + 4 * v), minimum = load(w->minimum + 4 * v);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        const vec product = fma(minimum, set1(x->total[t]), result[t][v]);
        result[t][v] = fma(mul(scale, set1(x->scale[t])), vcvtq_f32_s32(sums[t][v]), product);
      }
    }
  }
  for (int t = 0; t < T; t++) {
    for (int v = 0; v < 4; v++) store(out + t * PANEL + 4 * v, result[t][v]);
  }
}
