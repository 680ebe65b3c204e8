// One source, several instruction sets: the same functions are compiled once for each set, and a
// table of pointers is chosen when the library is loaded, so that one build runs everywhere.
//
// Each set has a variant_<set>.cpp that
//   1. includes the standard headers,
//   2. switches the compiler to the set (a pragma; with MSVC nothing is needed),
//   3. includes, inside `namespace minillm::<set>`: simd_<set>.inl (vectors of floats: load, store,
//      fma, exp, conversion of float16 and bfloat16), panel_<set>.inl (the inner product),
//      quantize.inl and product.inl (written once, on top of those), and attention.inl,
//   4. fills in the table `variant`.
// Inside the pragma nothing may instantiate a template or an inline function of the standard
// library: the linker keeps one copy of such a function for all files, and that copy would then
// hold instructions which not every machine has. For the same reason everything in an .inl is
// static or in the variant's own namespace. A test looks for such instructions in all other files.
//
// attention.inl defines `static const AttentionFunctions attention_functions = {...}`, a struct of
// function pointers that attention.h declares; a step takes `current().attention` at its beginning.
#pragma once

#include "products.h"

#if defined(__x86_64__) || defined(_M_X64)
#define MINILLM_X86 1
#elif defined(__aarch64__) && (!defined(__clang__) || defined(__ARM_FEATURE_DOTPROD))
#define MINILLM_NEON 1  // clang's arm_neon.h has the dot product only where it is switched on
#endif

// Before a loop of a few rounds over vectors: without it, they may stay in memory between rounds.
#if defined(__clang__)
#define MINILLM_UNROLL _Pragma("unroll")
#elif defined(__GNUC__)
#define MINILLM_UNROLL _Pragma("GCC unroll 16")
#else
#define MINILLM_UNROLL
#endif

namespace minillm {

struct AttentionFunctions;  // in attention.h

struct Variant {
  const char* name;
  void (*quantize)(const Activations& x, int64_t first, int64_t last);
  void (*product)(const Weight& w, const Activations& x, int64_t M, int64_t first, int64_t last,
                  float* y, int64_t ldy, const float* bias);
  const AttentionFunctions* attention;
};

const Variant& current();

}  // namespace minillm
