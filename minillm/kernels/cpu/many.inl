// Products for many tokens (prefill), where arithmetic is the limit and not the reading of weights.
//
// Panels are unpacked before use, and each unpacked panel serves MANY tokens:
//
//   for each block of MANY tokens                 their codes, reordered: 100 KB, second-level cache
//     for each run of at most 24 blocks of 32 columns
//       for each panel of 16 rows                 15 KB of bytes (portable: 28), first-level cache
//         for each tile of TOKENS tokens          sums in registers, between runs in y
//
// The inner loop, `tile_product`, is in tile_*.inl, as is `unpack_block`. It rounds and adds in the
// order of `panel_product`: how many tokens there are changes no token's result by a single bit.

constexpr int64_t MANY = 96;        // tokens, a multiple of every variant's TOKENS
constexpr int64_t RUN = 24;         // blocks

// 32 columns of a tile's tokens: word q of all tokens together, as of all rows in a panel.
struct TileBlock {
  int8_t codes[8][TOKENS][4];
  float scale[TOKENS];
  float total[TOKENS];  // scale · Σ codes
  int32_t sum[TOKENS];  // Σ codes
};

// 32 columns of a panel: codes of one size, and what they are worth: scale · code + minimum.
struct PanelBlock {
  alignas(64) PanelCode codes[8][PANEL][4];
  float scale[PANEL];
  float minimum[PANEL];
};

// One block of a panel, whose group's head is `head`.
template <int BITS>
static void unpack_block(const Weight& w, const uint8_t* head, const uint8_t* block,
                         PanelBlock* out);

// The first T tokens of a tile: out (T, 16) += Σ over `size` blocks of products.h's formula.
template <int BITS, int T>
static void tile_product(const TileBlock* x, const PanelBlock* w, int64_t size, float* out);

// The first `count` tokens of a tile, rounded up to thirds of a tile.
template <int BITS, int T = TOKENS>
static void part_product(int64_t count, const TileBlock* x, const PanelBlock* w, int64_t size,
                         float* out) {
  constexpr int THIRD = (TOKENS + 2) / 3;
  if constexpr (T > THIRD) {
    if (count <= T - THIRD) return part_product<BITS, T - THIRD>(count, x, w, size, out);
  }
  tile_product<BITS, T>(x, w, size, out);
}

// Tokens m on, of which there are `count`, for `size` blocks from `first` on. Missing ones are 0.
static void pack_tile(const Activations& x, int64_t row_blocks, int64_t m, int64_t count,
                      int64_t first, int64_t size, TileBlock* tile) {
  for (int64_t t = 0; t < TOKENS; t++) {
    for (int64_t b = 0; b < size; b++) {
      const int64_t at = (m + t) * row_blocks + first + b;
      const bool there = t < count;
      tile[b].scale[t] = there ? x.scales[at] : 0.0f;
      tile[b].sum[t] = there ? x.sums[at] : 0;
      tile[b].total[t] = tile[b].scale[t] * float(tile[b].sum[t]);
      for (int q = 0; q < 8; q++) {
        int32_t word = 0;
        if (there) std::memcpy(&word, x.codes + at * BLOCK + 4 * q, 4);
        std::memcpy(tile[b].codes[q][t], &word, 4);
      }
    }
  }
}

template <int BITS>
static void unpack_panel(const Weight& w, const uint8_t* panel, int64_t first, int64_t size,
                         PanelBlock* out) {
  for (int64_t b = first; b < first + size; b++) {
    const uint8_t* group = panel + b / w.group_blocks * w.group_bytes;
    const uint8_t* block = group + w.head_bytes + b % w.group_blocks * w.block_bytes;
    unpack_block<BITS>(w, group, block, &out[b - first]);
  }
}

// The rows of a panel that are within [first, last), for T tokens: out (T, 16) to y plus bias.
static inline void put_panel(const float* out, int64_t row, int64_t T, int64_t first, int64_t last,
                             float* y, int64_t ldy, const float* bias) {
  const int64_t from = row < first ? first : row, to = row + PANEL > last ? last : row + PANEL;
  for (int64_t t = 0; t < T; t++, out += PANEL, y += ldy) {
    if (!bias && to - from == PANEL) {
      std::memcpy(y + row, out, PANEL * sizeof(float));
    } else {
      for (int64_t n = from; n < to; n++) y[n] = out[n - row] + (bias ? bias[n] : 0.0f);
    }
  }
}

// The sums so far, back from y; 0 where there are none.
static inline void take_panel(const float* y, int64_t row, int64_t T, int64_t first, int64_t last,
                              int64_t ldy, float* out) {
  const int64_t from = row < first ? first : row, to = row + PANEL > last ? last : row + PANEL;
  std::memset(out, 0, TOKENS * PANEL * sizeof(float));
  for (int64_t t = 0; t < T; t++, out += PANEL, y += ldy) {
    std::memcpy(out + from - row, y + from, size_t(to - from) * sizeof(float));
  }
}

template <int BITS>
static void many_product(const Weight& w, const Activations& x, int64_t M, int64_t first,
                         int64_t last, float* y, int64_t ldy, const float* bias) {
  alignas(64) TileBlock tiles[MANY / TOKENS][RUN];
  alignas(64) PanelBlock unpacked[RUN];
  alignas(64) float out[TOKENS * PANEL];
  const int64_t blocks = w.cols / BLOCK, runs = (blocks + RUN - 1) / RUN;
  for (int64_t m = 0; m < M; m += MANY) {
    const int64_t tokens = M - m < MANY ? M - m : MANY;
    for (int64_t run = 0; run < runs; run++) {
      const int64_t begin = blocks * run / runs, size = blocks * (run + 1) / runs - begin;
      for (int64_t t = 0; t < tokens; t += TOKENS) {
        pack_tile(x, blocks, m + t, tokens - t, begin, size, tiles[t / TOKENS]);
      }
      for (int64_t row = first / PANEL * PANEL; row < last; row += PANEL) {
        unpack_panel<BITS>(w, w.data + row / PANEL * w.panel_bytes, begin, size, unpacked);
        for (int64_t t = 0; t < tokens; t += TOKENS) {
          const int64_t T = tokens - t < TOKENS ? tokens - t : TOKENS;
          float* to = y + (m + t) * ldy;
          take_panel(to, row, run ? T : 0, first, last, ldy, out);
          part_product<BITS>(T, tiles[t / TOKENS], unpacked, size, out);
          put_panel(out, row, T, first, last, to, ldy, run + 1 < runs ? nullptr : bias);
        }
      }
    }
  }
}
