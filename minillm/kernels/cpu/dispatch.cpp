// Which instruction sets this machine has, and which variant is in use. dispatch.h has the idea.
#include "dispatch.h"

#include <atomic>
#include <cstring>

#include "export.h"

#if defined(MINILLM_X86) && defined(_MSC_VER)
#include <intrin.h>
#elif defined(MINILLM_X86)
#include <cpuid.h>
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

#ifdef MINILLM_X86
#ifdef _MSC_VER
static void cpuid(int leaf, uint32_t* found) {
  __cpuidex(reinterpret_cast<int*>(found), leaf, 0);
}
static uint64_t saved_registers() { return _xgetbv(0); }
#else
static void cpuid(int leaf, uint32_t* found) {
  __cpuid_count(leaf, 0, found[0], found[1], found[2], found[3]);
}
static uint64_t saved_registers() {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return low;
}
#endif

// Whether register 0 to 3 (eax to edx) of a leaf of cpuid has all these bits.
static bool has(int leaf, int reg, uint32_t bits) {
  uint32_t found[4];
  cpuid(0, found);
  if (uint32_t(leaf) > found[0]) return false;
  cpuid(leaf, found);
  return (found[reg] & bits) == bits;
}

// The instructions, and a system that saves their registers (bits 1, 2: AVX; 5 to 7: AVX-512).
static bool has_avx2() {
  const uint32_t fma = 1u << 12, osxsave = 1u << 27, f16c = 1u << 29, avx2 = 1u << 5;
  return has(1, 2, fma | osxsave | f16c) && (saved_registers() & 0x6) == 0x6 && has(7, 1, avx2);
}
static bool has_avx512() {
  const uint32_t f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31, vnni = 1u << 11;
  return has_avx2() && (saved_registers() & 0xe6) == 0xe6 && has(7, 1, f | dq | bw | vl) &&
         has(7, 2, vnni);
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

// Several threads may ask first; they find the same.
static std::atomic<const Variant*> in_use{nullptr};

const Variant& current() {
  const Variant* found = in_use.load(std::memory_order_relaxed);
  for (const Candidate* c = candidates; !found; c++) {
    if (c->runs_here()) in_use.store(found = c->variant, std::memory_order_relaxed);
  }
  return *found;
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
