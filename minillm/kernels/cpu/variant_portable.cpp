// The variant that runs everywhere: standard C++ and nothing else. dispatch.h explains variants.
#include "attention.h"
#include "dispatch.h"

namespace minillm {
namespace portable {

#include "simd_portable.inl"
#include "panel_portable.inl"
#include "quantize.inl"
#include "many.inl"
#include "tile_portable.inl"
#include "product.inl"
#include "attention.inl"

extern const Variant variant;
const Variant variant = {"portable", quantize, product, &attention_functions};

}  // namespace portable
}  // namespace minillm
