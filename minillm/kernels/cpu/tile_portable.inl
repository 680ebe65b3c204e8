// The product of an unpacked panel with a tile of tokens, in plain C++. See many.inl.
//
// Codes lie row after row here, and both sides of a product have 16 bits: a sum of 32 such products
// in 32 bits is what compilers know an instruction for (pmaddwd of SSE2, smlal of NEON). It has
// twice the speed of the form for packed codes in panel_portable.inl.

template <int BITS>
static void unpack_block(const Weight& w, const uint8_t* head, const uint8_t* block,
                         PanelBlock* out) {
  read_head(w, head, out->scale, out->minimum);
  uint8_t* codes = out->codes[0][0];
  for (int r = 0; r < PANEL; r++) {
    for (int q = 0; q < BITS; q++) {
      for (int i = 0; i < 4; i++) {
        const uint8_t byte = block[64 * q + 4 * r + i];
        codes[BLOCK * r + 4 * q + i] = BITS == 4 ? byte & 15 : byte;
        if (BITS == 4) codes[BLOCK * r + 4 * q + i + 16] = byte >> 4;
      }
    }
  }
}

// out (T, 16) += Σ over `size` blocks.
template <int BITS, int T>
static void tile_product(const TileBlock* x, const PanelBlock* w, int64_t size, float* out) {
  for (; size > 0; size--, x++, w++) {
    int16_t rows[PANEL * BLOCK], tokens[T * BLOCK];
    const auto* codes = reinterpret_cast<const int8_t*>(w->codes);
    for (int i = 0; i < PANEL * BLOCK; i++) rows[i] = codes[i];
    for (int t = 0; t < T; t++) {
      for (int q = 0; q < 8; q++) {
        for (int i = 0; i < 4; i++) tokens[BLOCK * t + 4 * q + i] = x->codes[q][t][i];
      }
    }
    for (int t = 0; t < T; t++) {
      int32_t sums[PANEL];
      for (int r = 0; r < PANEL; r++) {
        sums[r] = 0;
        for (int c = 0; c < BLOCK; c++) sums[r] += rows[BLOCK * r + c] * tokens[BLOCK * t + c];
      }
      add_products(w->scale, w->minimum, sums, x->scale[t], x->sum[t], out + t * PANEL);
    }
  }
}
