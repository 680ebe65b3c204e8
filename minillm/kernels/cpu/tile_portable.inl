// The product of an unpacked panel with a tile of tokens, in plain C++. See many.inl.

template <int BITS>
static void unpack_block(const Weight& w, const uint8_t* head, const uint8_t* block,
                         PanelBlock* out) {
  read_head(w, head, out->scale, out->minimum);
  for (int q = 0; q < BITS; q++) {
    for (int r = 0; r < PANEL; r++) {
      for (int i = 0; i < 4; i++) {
        const uint8_t byte = block[64 * q + 4 * r + i];
        out->codes[q][r][i] = BITS == 4 ? byte & 15 : byte;
        if (BITS == 4) out->codes[q + 4][r][i] = byte >> 4;
      }
    }
  }
}

// out (T, 16) += Σ over `size` blocks.
template <int BITS, int T>
static void tile_product(const TileBlock* x, const PanelBlock* w, int64_t size, float* out) {
  for (; size > 0; size--, x++, w++) {
    for (int t = 0; t < T; t++) {
      int16_t narrow[4 * PANEL] = {};
      int32_t wide[4 * PANEL] = {};
      for (int q = 0; q < 8; q++) {
        const auto* codes = reinterpret_cast<const int8_t*>(w->codes[q]);
        if (BITS == 4) add_word(codes, x->codes[q][t], narrow);
        if (BITS == 8) add_word(codes, x->codes[q][t], wide);
      }
      int32_t sums[PANEL];
      BITS == 4 ? add_lanes(narrow, sums) : add_lanes(wide, sums);
      for (int r = 0; r < PANEL; r++) {
        const float product = w->scale[r] * float(sums[r]) + w->minimum[r] * float(x->sum[t]);
        out[t * PANEL + r] += x->scale[t] * product;
      }
    }
  }
}
