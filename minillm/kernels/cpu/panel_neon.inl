// The inner product with NEON and its dot product. panel_portable.inl has the meaning, pack.cpp
// the order of codes.
//
// A panel's 16 rows are four vectors of 4 lanes, 4 bytes of a row in each. `vdotq` multiplies these
// with the activations' 4 bytes, the same for all lanes, and adds the products to a lane's sum.

// Tokens at once, as registers allow: straight from packed weights, and from unpacked ones.
constexpr int TILE = 4, TOKENS = 3;
using PanelCode = uint8_t;

static inline float quantize_block(const float* x, int8_t* codes, int32_t* sum) {
  uint32x4_t largest = vdupq_n_u32(0);  // of |x| as bits, where NaN is larger than infinity
  for (int i = 0; i < BLOCK; i += 4) {
    largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + i))));
  }
  const float scale = from_bits(vmaxvq_u32(largest)) / 127.0f;
  int32x4_t total = vdupq_n_s32(0);
  for (int i = 0; i < BLOCK; i += 8) {
    int32x4_t steps[2];
    for (int h = 0; h < 2; h++) {
      const vec step = divide(vld1q_f32(x + i + 4 * h), set1(scale));
      const vec held = vmaxq_f32(set1(-127.0f), vminq_f32(set1(127.0f), step));
      steps[h] = vcvtnq_s32_f32(held);  // to nearest, halves to even; NaN, from 0/0, becomes 0
      total = vaddq_s32(total, steps[h]);
    }
    vst1_s8(codes + i, vmovn_s16(vcombine_s16(vmovn_s32(steps[0]), vmovn_s32(steps[1]))));
  }
  *sum = vaddvq_s32(total);
  return scale;
}

// Scales and minima of 4 of a group's rows (quarter 0 to 3), out of its head.
static inline void read_head(const Weight& w, const uint8_t* head, int quarter, vec* scale,
                             vec* minimum) {
  const uint8_t* offsets = head + PANEL * (w.wide_scales ? 4 : 2);
  *scale = w.wide_scales ? load(reinterpret_cast<const float*>(head) + 4 * quarter)
                         : load(reinterpret_cast<const float16*>(head) + 4 * quarter);
  if (w.offset == Offset::MINIMA) {
    *minimum = load(reinterpret_cast<const float16*>(offsets) + 4 * quarter);
    return;
  }
  int32_t zeros[4];
  for (int r = 0; r < 4; r++) {
    zeros[r] = w.fixed_zero + (w.offset == Offset::ZEROS ? offsets[4 * quarter + r] : 0);
  }
  *minimum = mul(*scale, vnegq_f32(vcvtq_f32_s32(vld1q_s32(zeros))));
}

static inline int8x16_t repeat4(const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, 4);
  return vreinterpretq_s8_s32(vdupq_n_s32(word));
}

// Σ code · xcode over a block, 4 rows in each vector, for T tokens whose codes are `stride` apart.
template <int BITS, int T>
static inline void block_sums(const uint8_t* block, const int8_t* x, int64_t stride,
                              int32x4_t (*sums)[4]) {
  for (int t = 0; t < T; t++) {
    MINILLM_UNROLL
    for (int v = 0; v < 4; v++) sums[t][v] = vdupq_n_s32(0);
  }
  MINILLM_UNROLL
  for (int q = 0; q < BITS; q++) {
    MINILLM_UNROLL
    for (int v = 0; v < 4; v++) {
      const uint8x16_t codes = vld1q_u8(block + 64 * q + 16 * v);
      const uint8x16_t low = BITS == 4 ? vandq_u8(codes, vdupq_n_u8(15)) : codes;
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        const int8_t* at = x + t * stride + 4 * q;
        sums[t][v] = vdotq_s32(sums[t][v], vreinterpretq_s8_u8(low), repeat4(at));
        if (BITS == 8) continue;
        const int8x16_t high = vreinterpretq_s8_u8(vshrq_n_u8(codes, 4));
        sums[t][v] = vdotq_s32(sums[t][v], high, repeat4(at + 16));
      }
    }
  }
}

template <int BITS, int T>
static void panel_product(const Weight& w, const uint8_t* panel, const Activations& x,
                          float* out) {
  const int64_t blocks = w.cols / BLOCK;
  vec result[T][4];
  for (int t = 0; t < T; t++) {
    for (int v = 0; v < 4; v++) result[t][v] = zero();
  }
  int64_t b = 0;
  for (int64_t g = 0; g < w.groups; g++) {
    vec scale[4], minimum[4];
    for (int v = 0; v < 4; v++) read_head(w, panel, v, &scale[v], &minimum[v]);
    const uint8_t* block = panel + w.head_bytes;
    panel += w.group_bytes;
    for (; block < panel; block += PANEL * BLOCK * BITS / 8, b++) {
      int32x4_t sums[T][4];
      block_sums<BITS, T>(block, x.codes + b * BLOCK, w.cols, sums);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        const float s = x.scales[t * blocks + b], total = s * float(x.sums[t * blocks + b]);
        MINILLM_UNROLL
        for (int v = 0; v < 4; v++) {
          const vec product = fma(minimum[v], set1(total), result[t][v]);
          result[t][v] = fma(mul(scale[v], set1(s)), vcvtq_f32_s32(sums[t][v]), product);
        }
      }
    }
  }
  for (int t = 0; t < T; t++) {
    for (int v = 0; v < 4; v++) store(out + t * PANEL + 4 * v, result[t][v]);
  }
}
