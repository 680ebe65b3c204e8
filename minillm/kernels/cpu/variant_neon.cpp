// The variant for NEON with the dot product of ARMv8.2. dispatch.h says how variants work.
#include "dispatch.h"

#if __has_include("attention.inl")
#include "attention.h"
#endif

#if defined(MINILLM_NEON)
#include <arm_neon.h>

#if !defined(__clang__)
#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")
#endif

namespace minillm {
namespace neon {

#include "simd_neon.inl"
#include "panel_neon.inl"
#include "quantize.inl"
#include "many.inl"
#include "tile_neon.inl"
#include "product.inl"
#if __has_include("attention.inl")
#include "attention.inl"
static const AttentionFunctions* const attention = &attention_functions;
#else
static const AttentionFunctions* const attention = nullptr;
#endif

extern const Variant variant;
const Variant variant = {"neon", quantize, product, attention};

}  // namespace neon
}  // namespace minillm

#if !defined(__clang__)
#pragma GCC pop_options
#endif
#endif
