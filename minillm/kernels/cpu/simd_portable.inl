// Vectors of floats in plain C++: the meaning of the names that each simd_*.inl defines.
// WIDTH is how many floats a vec holds. Nothing here assumes alignment.

constexpr int WIDTH = 4;

struct vec {
  float v[WIDTH];
};

template <typename F>
static inline vec each(F f) {
  vec r;
  for (int i = 0; i < WIDTH; i++) r.v[i] = f(i);
  return r;
}

static inline vec set1(float x) { return each([=](int) { return x; }); }
static inline vec zero() { return set1(0.0f); }

// Memory of float, float16 or bfloat16 as floats; and back, rounded to nearest.
template <typename T>
static inline vec load(const T* p) {
  return each([=](int i) { return to_float(p[i]); });
}
static inline void store(float* p, vec a) {
  for (int i = 0; i < WIDTH; i++) p[i] = a.v[i];
}
static inline void store(float16* p, vec a) {
  for (int i = 0; i < WIDTH; i++) p[i] = to_float16(a.v[i]);
}
static inline void store(bfloat16* p, vec a) {
  for (int i = 0; i < WIDTH; i++) p[i] = to_bfloat16(a.v[i]);
}

static inline vec add(vec a, vec b) {
  return each([&](int i) { return a.v[i] + b.v[i]; });
}
static inline vec sub(vec a, vec b) {
  return each([&](int i) { return a.v[i] - b.v[i]; });
}
static inline vec mul(vec a, vec b) {
  return each([&](int i) { return a.v[i] * b.v[i]; });
}
static inline vec divide(vec a, vec b) {
  return each([&](int i) { return a.v[i] / b.v[i]; });
}
// a·b + c, in one rounding where the processor can.
static inline vec fma(vec a, vec b, vec c) {
  return each([&](int i) { return a.v[i] * b.v[i] + c.v[i]; });
}
// Where a or b is NaN, b: as the x86 instruction has it.
static inline vec maximum(vec a, vec b) {
  return each([&](int i) { return a.v[i] > b.v[i] ? a.v[i] : b.v[i]; });
}
static inline float sum(vec a) { return (a.v[0] + a.v[2]) + (a.v[1] + a.v[3]); }
static inline float highest(vec a) {
  const float x = a.v[0] > a.v[2] ? a.v[0] : a.v[2], y = a.v[1] > a.v[3] ? a.v[1] : a.v[3];
  return x > y ? x : y;
}

// e^x for x <= 88: e^x = 2^k · e^r with k = round(x / ln 2), and a polynomial for e^r, |r| <= 0.35.
// Relative error below 2e-7; below -87.3, where the result would be subnormal, 0. NaN stays NaN.
static inline vec exp(vec a) {
  return each([&](int i) {
    const float x = a.v[i];
    if (x < -87.3f) return 0.0f;
    if (x != x) return x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 · 2^23: the sum has no fraction
    const float k = shifted - 12582912.0f;
    const float r = (x - k * 0.693359375f) + k * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    const float y = p * r * r + r + 1.0f;
    return y * from_bits(uint32_t(int32_t(k) + 127) << 23);
  });
}

// For attention. WIDTH bytes, or codes of 4 bits (two in a byte, the first in its low half), as
// floats.
static inline vec load_bytes(const uint8_t* p) {
  return each([=](int i) { return float(p[i]); });
}
static inline vec load_nibbles(const uint8_t* p) {
  return each([=](int i) { return float(p[i / 2] >> (i % 2 * 4) & 15); });
}
// Every second bfloat16, from p[0] or p[1] on.
static inline vec load_even(const bfloat16* p) {
  return each([=](int i) { return to_float(p[2 * i]); });
}
static inline vec load_odd(const bfloat16* p) {
  return each([=](int i) { return to_float(p[2 * i + 1]); });
}
// The sums of WIDTH vectors, in two steps: `fold` makes one of four, and `sums` takes WIDTH / 4
// of those.
static inline vec fold(const vec* x) {
  return each([=](int i) { return sum(x[i]); });
}
static inline vec sums(const vec* x) { return x[0]; }
