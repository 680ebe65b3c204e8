// The inner product in plain C++, what the vector forms in panel_avx2.inl and its like mean,
// and what runs where none of them does.

// Tokens at once: straight from packed weights, and from unpacked ones, which have 16 bits here.
constexpr int TILE = 1, TOKENS = 1;
using PanelCode = int16_t;

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

static inline void read_halves(const uint8_t* from, float* to) {
  float16 halves[PANEL];
  std::memcpy(halves, from, sizeof halves);
  for (int r = 0; r < PANEL; r++) to[r] = to_float(halves[r]);
}

// Scales and minima of a group's 16 rows, out of its head.
static inline void read_head(const Weight& w, const uint8_t* head, float* scale, float* minimum) {
  const uint8_t* offsets = head + PANEL * (w.wide_scales ? 4 : 2);
  if (w.wide_scales) {
    std::memcpy(scale, head, PANEL * sizeof(float));
  } else {
    read_halves(head, scale);
  }
  if (w.offset == Offset::MINIMA) return read_halves(offsets, minimum);
  for (int r = 0; r < PANEL; r++) {
    const int zero = w.offset == Offset::ZEROS ? offsets[r] : 0;
    minimum[r] = scale[r] * -float(zero + w.fixed_zero);
  }
}

// The code in lane `at` of word q: lane 4r + i is row r, column i of the word's four.
template <int BITS>
static inline int16_t code_at(const uint8_t* block, int q, int at) {
  if (BITS == 8) return int8_t(block[64 * q + at]);
  return q < 4 ? block[64 * q + at] & 15 : block[64 * (q - 4) + at] >> 4;
}

// Σ code · xcode over a block of 32 columns, for each of a panel's rows. Written for a compiler's
// own vectors: no lane needs another until the end, and 16 bits hold 8 products of 4-bit codes,
// 8 · 15 · 127 = 15,240, or 2 of 8-bit ones, 2 · 128 · 127 = 32,512.
template <int BITS>
static inline void block_sums(const uint8_t* block, const int8_t* x, int32_t* sums) {
  constexpr int PRODUCTS = BITS == 4 ? 8 : 2;
  int16_t repeated[8][16];
  for (int q = 0; q < 8; q++) {
    for (int i = 0; i < 16; i++) repeated[q][i] = x[4 * q + i % 4];
  }
  int32_t lanes[4 * PANEL];
  for (int v = 0; v < 4; v++) {
    for (int i = 0; i < 16; i++) {
      int32_t lane = 0;
      for (int q = 0; q < 8; q += PRODUCTS) {
        int16_t few = 0;
        for (int p = q; p < q + PRODUCTS; p++) {
          few = int16_t(few + code_at<BITS>(block, p, 16 * v + i) * repeated[p][i]);
        }
        lane += few;
      }
      lanes[16 * v + i] = lane;
    }
  }
  for (int r = 0; r < PANEL; r++) {
    sums[r] = (lanes[4 * r] + lanes[4 * r + 1]) + (lanes[4 * r + 2] + lanes[4 * r + 3]);
  }
}

// out (16,) += what the sums of a block are worth, for a token whose own codes sum to `total`.
static inline void add_products(const float* scale, const float* minimum, const int32_t* sums,
                                float xscale, int32_t total, float* out) {
  float products[PANEL];  // of its own: were it `out`, a compiler could not tell it from `scale`
  for (int r = 0; r < PANEL; r++) {
    products[r] = scale[r] * float(sums[r]) + minimum[r] * float(total);
  }
  for (int r = 0; r < PANEL; r++) out[r] += xscale * products[r];
}

// One panel of 16 rows times one token: out (16,).
template <int BITS, int>
static void panel_product(const Weight& w, const uint8_t* panel, const Activations& x,
                          float* out) {
  float scale[PANEL], minimum[PANEL];
  int32_t sums[PANEL];
  for (int r = 0; r < PANEL; r++) out[r] = 0.0f;
  for (int64_t b = 0; b < w.cols / BLOCK; b++) {
    const uint8_t* group = panel + b / w.group_blocks * w.group_bytes;
    const uint8_t* block = group + w.head_bytes + b % w.group_blocks * w.block_bytes;
    if (b % w.group_blocks == 0) read_head(w, group, scale, minimum);
    block_sums<BITS>(block, x.codes + b * BLOCK, sums);
    add_products(scale, minimum, sums, x.scales[b], x.sums[b], out);
  }
}
