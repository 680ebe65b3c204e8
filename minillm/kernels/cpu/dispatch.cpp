// Which instruction sets this machine has, and which variant is in use. dispatch.h has the idea.
#include "dispatch.h"

#include <cstring>

#include "export.h"

#if defined(__x86_64__) || defined(_M_X64)
#define MINILLM_X86 1
#elif defined(__aarch64__) || defined(_M_ARM64)
#define MINILLM_ARM 1
#endif

namespace minillm {

namespace portable {
extern const Variant variant;
}

static bool always() { return true; }

struct Candidate {
  const Variant* variant;
  bool (*runs_here)();
};

// The best first.
static const Candidate candidates[] = {
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
