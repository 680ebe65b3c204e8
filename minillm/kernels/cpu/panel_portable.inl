// The inner product in plain C++, one row and one column at a time: what the vector forms in
// panel_avx2.inl and its like mean, and what runs where none of them does.

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

// Σ code · xcode over a block of 32 columns, for row r of a panel.
template <int BITS>
static inline int32_t block_sum(const uint8_t* block, int r, const int8_t* x) {
  int32_t sum = 0;
  for (int q = 0; q < 4; q++) {
    for (int i = 4 * q; i < 4 * q + 4; i++) {
      if (BITS == 4) {
        const uint8_t byte = block[64 * q + 4 * r + i % 4];
        sum += (byte & 15) * x[i] + (byte >> 4) * x[i + 16];
      } else {
        sum += int8_t(block[64 * q + 4 * r + i % 4]) * x[i];
        sum += int8_t(block[64 * (q + 4) + 4 * r + i % 4]) * x[i + 16];
      }
    }
  }
  return sum;
}

// One panel of 16 rows times T tokens from token m on: out (T, 16).
template <int BITS, int T>
static void panel_product(const Weight& w, const uint8_t* panel, const Activations& x, int64_t m,
                          float* out) {
  const int64_t blocks = w.cols / BLOCK;
  float scale[PANEL], minimum[PANEL];
  for (int i = 0; i < T * PANEL; i++) out[i] = 0.0f;
  for (int64_t b = 0; b < blocks; b++) {
    const uint8_t* group = panel + b / w.group_blocks * w.group_bytes;
    const uint8_t* block = group + w.head_bytes + b % w.group_blocks * w.block_bytes;
    if (b % w.group_blocks == 0) read_head(w, group, scale, minimum);
    for (int t = 0; t < T; t++) {
      const int64_t at = (m + t) * blocks + b;
      for (int r = 0; r < PANEL; r++) {
        const float sum = float(block_sum<BITS>(block, r, x.codes + at * BLOCK));
        out[t * PANEL + r] += x.scales[at] * (scale[r] * sum + minimum[r] * float(x.sums[at]));
      }
    }
  }
}
