// Half-width floating point: float16 (IEEE, 5 bits of exponent) and bfloat16 (the upper half of a
// float32), and their conversion to and from float32, one number at a time and without any
// instruction that not every machine has. The vector forms are in the simd_*.inl of each variant.
#pragma once

#include <cstdint>
#include <cstring>

namespace minillm {

struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

static inline float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

static inline uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

static inline float to_float(float x) { return x; }

static inline float to_float(bfloat16 x) { return from_bits(uint32_t(x.bits) << 16); }

// Sign, exponent (bias 15) and 10 bits of fraction move to float32's places (bias 127, 23 bits).
static inline float to_float(float16 x) {
  const uint32_t sign = uint32_t(x.bits & 0x8000) << 16, rest = x.bits & 0x7fff;
  if (rest >= 0x7c00) return from_bits(sign | 0x7f800000 | (rest & 0x3ff) << 13);  // infinity, NaN
  if (rest >= 0x0400) return from_bits(sign | ((rest << 13) + (112u << 23)));
  const float subnormal = float(rest) * 0x1p-24f;  // below 2^-14: a whole number of 2^-24
  return from_bits(sign | to_bits(subnormal));
}

// To nearest, halves to even, as the hardware does it.
static inline bfloat16 to_bfloat16(float x) {
  const uint32_t bits = to_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return {uint16_t(bits >> 16 | 0x40)};  // NaN stays one
  return {uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

static inline float16 to_float16(float x) {
  const uint32_t bits = to_bits(x), sign = bits >> 16 & 0x8000, rest = bits & 0x7fffffff;
  if (rest > 0x7f800000) return {uint16_t(sign | 0x7e00)};                // NaN
  if (rest >= 0x477ff000) return {uint16_t(sign | 0x7c00)};               // 65,520 and more
  if (rest < 0x38800000) {                                                // below 2^-14: subnormal
    // Adding 1/2 leaves the fraction in units of 2^-24, rounded by the addition itself.
    return {uint16_t(sign | (to_bits(from_bits(rest) + 0.5f) - 0x3f000000))};
  }
  return {uint16_t(sign | (rest - (112u << 23) + 0xfff + (rest >> 13 & 1)) >> 13)};
}

}  // namespace minillm
