// The inner product in plain C++, what the vector forms in panel_avx2.inl and its like mean,
// and what runs where none of them does.

// Tokens at once: straight from packed weights, and from unpacked ones.
constexpr int TILE = 4, TOKENS = 4;

// 32 values as codes; returns their scale. A block with NaN or infinity has a scale that is not
// finite and codes of 0, so that every product with it becomes NaN.
static inline float quantize_block(const float* x, int8_t* codes, int32_t* sum) {
  uint32_t largest = 0;  // of |x|, compared as bits, where NaN is larger than infinity
  for (int i = 0; i < BLOCK; i++) {
    const uint32_t bits = to_bits(x[i]) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  }
  const float scale = from_bits(largest) / 127.0f;
  *sum = 0;
  for (int i = 0; i < BLOCK; i++) {
    float step = x[i] / scale;
    step = step > 127.0f ? 127.0f : step < -127.0f ? -127.0f : step;
    const float shifted = step + 12582912.0f;  // 1.5 · 2^23: rounds to a whole number, half to even
    codes[i] = step != step ? 0 : int8_t(int32_t(to_bits(shifted) - 0x4b400000));
    *sum += codes[i];
  }
  return scale;
}

// Scales and minima of a group's 16 rows, out of its head.
static inline void read_head(const Weight& w, const uint8_t* head, float* scale, float* minimum) {
  const uint8_t* offsets = head + PANEL * (w.wide_scales ? 4 : 2);
  for (int r = 0; r < PANEL; r++) {
    float16 narrow;
    if (w.wide_scales) {
      std::memcpy(scale + r, head + 4 * r, 4);
    } else {
      std::memcpy(&narrow, head + 2 * r, 2);
      scale[r] = to_float(narrow);
    }
    if (w.offset == Offset::MINIMA) {
      std::memcpy(&narrow, offsets + 2 * r, 2);
      minimum[r] = to_float(narrow);
    } else {
      const int zero = w.offset == Offset::ZEROS ? offsets[r] : 0;
      minimum[r] = scale[r] * -float(zero + w.fixed_zero);
    }
  }
}

// Products of word q's codes with the activations' bytes: lane 4r + i is row r, column i of 4.
// Written for the compiler's own vectors: no lane needs another, and 16 bits hold 8 products of
// 4-bit codes, 8 · 15 · 127 = 15,240. Those of 8-bit codes need 32.
template <typename Sum>
static inline void add_word(const int8_t* codes, const int8_t* x, Sum* sums) {
  int8_t repeated[4 * PANEL];
  for (int r = 0; r < PANEL; r++) std::memcpy(repeated + 4 * r, x, 4);
  for (int i = 0; i < 4 * PANEL; i++) sums[i] = Sum(sums[i] + Sum(codes[i]) * Sum(repeated[i]));
}

// The four lanes of each row, summed.
template <typename Sum>
static inline void add_lanes(const Sum* lanes, int32_t* sums) {
  for (int r = 0; r < PANEL; r++) {
    sums[r] = 0;
    for (int i = 4 * r; i < 4 * r + 4; i++) sums[r] += lanes[i];
  }
}

// Σ code · xcode over a block of 32 columns, for each of a panel's rows.
template <int BITS>
static inline void block_sums(const uint8_t* block, const int8_t* x, int32_t* sums) {
  if (BITS == 8) {
    int32_t lanes[4 * PANEL] = {};
    const auto* codes = reinterpret_cast<const int8_t*>(block);
    for (int q = 0; q < 8; q++) add_word(codes + 64 * q, x + 4 * q, lanes);
    return add_lanes(lanes, sums);
  }
  int16_t lanes[4 * PANEL] = {};
  for (int q = 0; q < 4; q++) {
    int8_t first[4 * PANEL], second[4 * PANEL];
    for (int i = 0; i < 4 * PANEL; i++) first[i] = int8_t(block[64 * q + i] & 15);
    for (int i = 0; i < 4 * PANEL; i++) second[i] = int8_t(block[64 * q + i] >> 4);
    add_word(first, x + 4 * q, lanes);
    add_word(second, x + 4 * q + 16, lanes);
  }
  add_lanes(lanes, sums);
}

// One panel of 16 rows times the first T tokens: out (T, 16).
template <int BITS, int T>
static void panel_product(const Weight& w, const uint8_t* panel, const Activations& x,
                          float* out) {
  const int64_t blocks = w.cols / BLOCK;
  float scale[PANEL], minimum[PANEL];
  for (int i = 0; i < T * PANEL; i++) out[i] = 0.0f;
  for (int64_t b = 0; b < blocks; b++) {
    const uint8_t* group = panel + b / w.group_blocks * w.group_bytes;
    const uint8_t* block = group + w.head_bytes + b % w.group_blocks * w.block_bytes;
    if (b % w.group_blocks == 0) read_head(w, group, scale, minimum);
    for (int t = 0; t < T; t++) {
      const int64_t at = t * blocks + b;
      int32_t sums[PANEL];
      block_sums<BITS>(block, x.codes + at * BLOCK, sums);
      for (int r = 0; r < PANEL; r++) {
        const float product = scale[r] * float(sums[r]) + minimum[r] * float(x.sums[at]);
        out[t * PANEL + r] += x.scales[at] * product;
      }
    }
  }
}
