// The variant that runs everywhere: standard C++ and nothing else. dispatch.h says how variants work.
#include "dispatch.h"

#if __has_include("attention.inl")
#include "attention.h"
#endif

namespace minillm {
namespace portable {

#include "simd_portable.inl"
#include "panel_portable.inl"
#include "quantize.inl"
#include "many.inl"
#include "tile_portable.inl"
#include "product.inl"
#if __has_include("attention.inl")
#include "attention.inl"
static const AttentionFunctions* const attention = &attention_functions;
#else
static const AttentionFunctions* const attention = nullptr;
#endif

extern const Variant variant;
const Variant variant = {"portable", quantize, product, attention};

}  // namespace portable
}  // namespace minillm
