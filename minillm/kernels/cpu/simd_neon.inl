// Vectors of 4 floats with NEON. simd_portable.inl says what each function means.

constexpr int WIDTH = 4;
typedef float32x4_t vec;

static inline vec set1(float x) { return vdupq_n_f32(x); }
static inline vec zero() { return vdupq_n_f32(0.0f); }

static inline vec load(const float* p) { return vld1q_f32(p); }
static inline vec load(const float16* p) {
  return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p))));
}
static inline vec load(const bfloat16* p) {
  return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t*>(p)), 16));
}
static inline void store(float* p, vec a) { vst1q_f32(p, a); }
static inline void store(float16* p, vec a) {
  vst1_u16(reinterpret_cast<uint16_t*>(p), vreinterpret_u16_f16(vcvt_f16_f32(a)));
}
static inline void store(bfloat16* p, vec a) {
  const uint32x4_t bits = vreinterpretq_u32_f32(a);
  const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
  const uint32x4_t up = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
  const uint32x4_t quiet = vorrq_u32(bits, vdupq_n_u32(0x400000));  // NaN stays one
  const uint32x4_t kept = vbslq_u32(vceqq_f32(a, a), up, quiet);
  vst1_u16(reinterpret_cast<uint16_t*>(p), vshrn_n_u32(kept, 16));
}

static inline vec add(vec a, vec b) { return vaddq_f32(a, b); }
static inline vec sub(vec a, vec b) { return vsubq_f32(a, b); }
static inline vec mul(vec a, vec b) { return vmulq_f32(a, b); }
static inline vec divide(vec a, vec b) { return vdivq_f32(a, b); }
static inline vec fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
static inline vec maximum(vec a, vec b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
static inline float sum(vec a) { return vaddvq_f32(a); }
static inline float highest(vec a) { return vmaxvq_f32(a); }

static inline vec exp(vec x) {
  const vec shifted = fma(x, set1(1.44269504f), set1(12582912.0f));
  const vec k = sub(shifted, set1(12582912.0f));
  const vec r = fma(k, set1(2.12194440e-4f), fma(k, set1(-0.693359375f), x));
  vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  const vec y = add(fma(mul(p, r), r, r), set1(1.0f));
  const int32x4_t power = vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23);  // 2^k, less its bias
  const vec scaled = vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y), power));
  const vec kept = vbslq_f32(vcltq_f32(x, set1(-87.3f)), zero(), scaled);
  return vbslq_f32(vceqq_f32(x, x), kept, x);
}

static inline vec load_bytes(const uint8_t* p) {
  const float wide[WIDTH] = {float(p[0]), float(p[1]), float(p[2]), float(p[3])};
  return vld1q_f32(wide);
}
static inline vec load_nibbles(const uint8_t* p) {
  const float wide[WIDTH] = {float(p[0] & 15), float(p[0] >> 4), float(p[1] & 15), float(p[1] >> 4)};
  return vld1q_f32(wide);
}
static inline vec load_even(const bfloat16* p) {
  const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(p)));
  return vreinterpretq_f32_u32(vshlq_n_u32(pairs, 16));
}
static inline vec load_odd(const bfloat16* p) {
  const uint32x4_t pairs = vreinterpretq_u32_u16(vld1q_u16(reinterpret_cast<const uint16_t*>(p)));
  return vreinterpretq_f32_u32(vandq_u32(pairs, vdupq_n_u32(0xffff0000)));
}
static inline vec fold(const vec* x) {
  return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3]));
}
static inline vec sums(const vec* x) { return x[0]; }
