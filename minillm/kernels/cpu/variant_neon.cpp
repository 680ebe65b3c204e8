// The variant for NEON with the dot product of ARMv8.2. dispatch.h says how variants work.
#include "attention.h"
#include "dispatch.h"

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
#include "attention.inl"

extern const Variant variant;
const Variant variant = {"neon", quantize, product, &attention_functions};

}  // namespace neon
}  // namespace minillm

#if !defined(__clang__)
#pragma GCC pop_options
#endif
#endif
