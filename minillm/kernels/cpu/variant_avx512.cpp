// The variant for AVX-512 (F, BW, VL, DQ, VNNI). dispatch.h says how variants work.
#include "attention.h"
#include "dispatch.h"

#if defined(MINILLM_X86)
#include <immintrin.h>

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni"))), apply_to = function)
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")
#endif

namespace minillm {
namespace avx512 {

#include "simd_avx512.inl"
#include "panel_avx512.inl"
#include "quantize.inl"
#include "many.inl"
#include "tile_avx512.inl"
#include "product.inl"
#include "attention.inl"

extern const Variant variant;
const Variant variant = {"avx512", quantize, product, &attention_functions};

}  // namespace avx512
}  // namespace minillm

#if defined(__clang__)
#pragma clang attribute pop
#elif defined(__GNUC__)
#pragma GCC pop_options
#endif
#endif
