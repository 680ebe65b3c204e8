// Memory for packed weights, in large pages where the system has them.
//
// A step reads all weights once, and for each page of them the processor must look up where it is:
// 24,000 look-ups for 98 MB in pages of 4 KB, 47 in pages of 2 MB. Linux gives large pages to
// memory that asks for them before it is first used (madvise), is aligned to them, and is large
// itself. A single matrix is too small, so matrices share slabs.
#include "pages.h"

#include <mutex>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#endif

// AddressSanitizer sees the end of an allocation, not that of a part of a slab.
#if defined(__SANITIZE_ADDRESS__)
#define MINILLM_SLABS 0
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define MINILLM_SLABS 0
#endif
#endif
#ifndef MINILLM_SLABS
#define MINILLM_SLABS 1
#endif

namespace minillm {

static constexpr size_t LINE = 64, LARGE_PAGE = size_t(2) << 20, SLAB = size_t(16) << 20;

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// At the beginning of its own memory. `live` parts are in use.
struct Slab {
  size_t size, used, live;
};

static std::mutex lock;
static Slab* current = nullptr;

static Slab* new_slab(size_t bytes) {
  const size_t size = round_up(bytes + LINE, LARGE_PAGE);
  void* memory = ::operator new(size, std::align_val_t(LARGE_PAGE));
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  madvise(memory, size, MADV_HUGEPAGE);  // advice: without it all works, only slower
#endif
  return new (memory) Slab{size, LINE, 0};
}

static void drop(Slab* slab) { ::operator delete(slab, std::align_val_t(LARGE_PAGE)); }

uint8_t* weights_alloc(size_t bytes) {
  // In front of each part, in a line of its own, stands the slab that it is in.
  const size_t needed = round_up(bytes, LINE) + LINE;
  std::lock_guard<std::mutex> held(lock);
  Slab* slab = current;
  if (!MINILLM_SLABS || !slab || slab->used + needed > slab->size) {
    slab = new_slab(MINILLM_SLABS && needed < SLAB / 2 ? SLAB - LINE : needed);
    if (MINILLM_SLABS && needed < SLAB / 2) {
      if (current && current->live == 0) drop(current);
      current = slab;
    }
  }
  uint8_t* part = reinterpret_cast<uint8_t*>(slab) + slab->used;
  *reinterpret_cast<Slab**>(part) = slab;
  slab->used += needed;
  slab->live++;
  return part + LINE;
}

void weights_free(uint8_t* data) {
  if (!data) return;
  std::lock_guard<std::mutex> held(lock);
  Slab* slab = *reinterpret_cast<Slab**>(data - LINE);
  if (--slab->live == 0 && slab != current) drop(slab);
  if (current && current->live == 0) current->used = LINE;  // the next model begins anew in it
}

}  // namespace minillm
