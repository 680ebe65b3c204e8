// The product of an unpacked panel with a token, in plain C++. See many.inl.
//
// Codes lie row after row here, and both sides of a product have 16 bits: the sum of such products
// in 32 bits is what compilers know an instruction for (pmaddwd of SSE2, smlal of NEON). That is
// three times as fast as panel_portable.inl's form for packed codes.

template <int BITS>
static void unpack_block(const Weight& w, const uint8_t* head, const uint8_t* block,
                         PanelBlock* out) {
  read_head(w, head, out->scale, out->minimum);
  auto* codes = reinterpret_cast<int16_t*>(out->codes);
  for (int r = 0; r < PANEL; r++) {
    for (int q = 0; q < BITS; q++) {
      for (int i = 0; i < 4; i++) {
        const uint8_t byte = block[64 * q + 4 * r + i];
        codes[BLOCK * r + 4 * q + i] = BITS == 4 ? byte & 15 : int8_t(byte);
        if (BITS == 4) codes[BLOCK * r + 4 * q + i + 16] = byte >> 4;
      }
    }
  }
}

static inline int32_t block_sum(const int16_t* codes, const int16_t* x) {
  int32_t sum = 0;
#if defined(__clang__)  // would unroll the loop first, and then find no such sum
#pragma clang loop unroll(disable) vectorize(enable)
#endif
  for (int i = 0; i < BLOCK; i++) sum += codes[i] * x[i];
  return sum;
}

// out (16,) += Σ over `size` blocks.
template <int BITS, int>
static void tile_product(const TileBlock* x, const PanelBlock* w, int64_t size, float* out) {
  for (; size > 0; size--, x++, w++) {
    const auto* codes = reinterpret_cast<const int16_t*>(w->codes);
    const auto* narrow = reinterpret_cast<const int8_t*>(x->codes);
    int16_t wide[BLOCK];
    int32_t sums[PANEL];
    for (int i = 0; i < BLOCK; i++) wide[i] = narrow[i];
    for (int r = 0; r < PANEL; r++) sums[r] = block_sum(codes + BLOCK * r, wide);
    add_products(w->scale, w->minimum, sums, x->scale[0], x->sum[0], out);
  }
}
