// The variant for AVX2, FMA and F16C. dispatch.h says how variants work.
#include "attention.h"
#include "dispatch.h"

#if defined(MINILLM_X86)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c")
#endif

namespace minillm {
namespace avx2 {

#include "simd_avx2.inl"
#include "panel_avx2.inl"
#include "quantize.inl"
#include "many.inl"
#include "tile_avx2.inl"
#include "product.inl"
#include "attention.inl"

extern const Variant variant;
const Variant variant = {"avx2", quantize, product, &attention_functions};

}  // namespace avx2
}  // namespace minillm

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif
