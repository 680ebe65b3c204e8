// Which instruction sets this machine has, and which variant is in use. dispatch.h has the idea.
#include "dispatch.h"

#include <cstring>

#include "export.h"

#if defined(MINILLM_X86) && defined(_MSC_VER)
#include <intrin.h>
#elif defined(MINILLM_NEON) && defined(__linux__)
#include <sys/auxv.h>
#endif

namespace minillm {

namespace portable {
extern const Variant variant;
}
#ifdef MINILLM_X86
namespace avx2 {
extern const Variant variant;
}
namespace avx512 {
extern const Variant variant;
}
#endif
#ifdef MINILLM_NEON
namespace neon {
extern const Variant variant;
}
#endif

static bool always() { return true; }

#if defined(MINILLM_X86) && defined(_MSC_VER)
// Bits of cpuid, and whether the system saves the registers (xgetbv: 6 for AVX, 0xe6 for AVX-512).
static bool has(int leaf, int reg, uint32_t bits) {
  int found[4];
  __cpuidex(found, leaf, 0);
  return (uint32_t(found[reg]) & bits) == bits;
}
static bool has_avx2() {
  const uint32_t fma_osxsave_f16c = 1u << 12 | 1u << 27 | 1u << 29;
  return has(1, 2, fma_osxsave_f16c) && (_xgetbv(0) & 6) == 6 && has(7, 1, 1u << 5);
}
static bool has_avx512() {
  const uint32_t f_dq_bw_vl = 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
  return has_avx2() && (_xgetbv(0) & 0xe6) == 0xe6 && has(7, 1, f_dq_bw_vl) && has(7, 2, 1u << 11);
}
#elif defined(MINILLM_X86)
static bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
static bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

#ifdef MINILLM_NEON
static bool has_dot_product() {
#ifdef __linux__
  return getauxval(AT_HWCAP) & 1 << 20;  // HWCAP_ASIMDDP
#else
  return true;  // every Mac with this architecture
#endif
}
#endif

struct Candidate {
  const Variant* variant;
  bool (*runs_here)();
};

// The best first.
static const Candidate candidates[] = {
#ifdef MINILLM_X86
    {&avx512::variant, has_avx512},
    {&avx2::variant, has_avx2},
#endif
#ifdef MINILLM_NEON
    {&neon::variant, has_dot_product},
#endif
    {&portable::variant, always},
};

static const Variant* in_use = nullptr;

const Variant& current() {
  if (!in_use) {
    for (const Candidate& c : candidates) {
      if (c.runs_here()) {
        in_use = c.variant;
        break;
      }
    }
  }
  return *in_use;
}

const char* variant_name() { return current().name; }

void quantize(const Activations& x, int64_t first, int64_t last) {
  current().quantize(x, first, last);
}

void product(const Weight& w, const Activations& x, int64_t M, int64_t first, int64_t last,
             float* y, int64_t ldy, const float* bias) {
  current().product(w, x, M, first, last, y, ldy, bias);
}

// For Python: the i-th variant that runs here, best first, null past the last; and the choice.
MINILLM_API const char* mm_variant(int32_t i) {
  for (const Candidate& c : candidates) {
    if (c.runs_here() && i-- == 0) return c.variant->name;
  }
  return nullptr;
}

MINILLM_API const char* mm_current() { return variant_name(); }

MINILLM_API int32_t mm_use(const char* name) {
  for (const Candidate& c : candidates) {
    if (std::strcmp(c.variant->name, name) == 0 && c.runs_here()) {
      in_use = c.variant;
      return 1;
    }
  }
  return 0;
}

// What the library was built from: a digest of all sources, given by setup.py.
#ifndef MINILLM_SOURCES
#define MINILLM_SOURCES ""
#endif
MINILLM_API const char* mm_sources() { return MINILLM_SOURCES; }

}  // namespace minillm
