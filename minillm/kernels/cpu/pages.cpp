// Memory in large pages, where the system has them: for packed weights, and for long KV caches.
//
// A step reads all weights once, and for each page of them the processor must look up where it is:
// 24,000 look-ups for 98 MB in pages of 4 KB, 47 in pages of 2 MB. Linux gives large pages to
// memory that asks for them before it is first used (madvise), is aligned to them, and is large
// itself. A single matrix is too small, so matrices share slabs.
//
// The system provides memory, filled with zeros, where it is first written to, which takes longer
// than to pack weights. A model that is about to be loaded says how much it will need: one slab is
// made for all of it, and provided by a second thread while the first reads the model's tokenizer.
#include "pages.h"

#include <mutex>
#include <new>

#include "export.h"

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

static constexpr size_t LINE = 64, PAGE = 4096, LARGE_PAGE = size_t(2) << 20;
static constexpr size_t SLAB = size_t(16) << 20;

static size_t round_up(size_t bytes, size_t to) { return (bytes + to - 1) / to * to; }

// At the beginning of its own memory. `live` parts are in use, up to `used`. The large page at
// `busy`, if that is not 0, is just being written to by `weights_ready`.
struct Slab {
  size_t size, used, live, busy;
};

static std::mutex lock;
static Slab* current = nullptr;

// Aligned to large pages. On Linux it comes from the system itself and goes back there at once:
// malloc would keep what is freed in the middle of its heap.
#if defined(__linux__) && MINILLM_SLABS
static void* take(size_t size) {
  void* mapped = mmap(nullptr, size + LARGE_PAGE, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  const auto start = reinterpret_cast<uintptr_t>(mapped);
  const size_t before = round_up(start, LARGE_PAGE) - start;
  uint8_t* memory = static_cast<uint8_t*>(mapped) + before;
  if (before) munmap(mapped, before);
  munmap(memory + size, LARGE_PAGE - before);
  madvise(memory, size, MADV_HUGEPAGE);  // advice: without it all works, only slower
  return memory;
}

static void give_back(void* memory, size_t size) { munmap(memory, size); }
#else
static void* take(size_t size) { return ::operator new(size, std::align_val_t(LARGE_PAGE)); }

static void give_back(void* memory, size_t) {
  ::operator delete(memory, std::align_val_t(LARGE_PAGE));
}
#endif

static Slab* new_slab(size_t bytes) {
  const size_t size = round_up(bytes + LINE, LARGE_PAGE);
  return new (take(size)) Slab{size, LINE, 0, 0};
}

static void drop(Slab* slab) { give_back(slab, slab->size); }

// One of the slab's parts is not in use any more. Whoever calls holds the lock.
static void release(Slab* slab) {
  if (--slab->live) return;
  // A common slab is kept for the next model, one for a model's own size until its model is gone.
  const bool spent = slab->size > SLAB && slab->used > LINE;
  if (slab == current && !spent) {
    slab->used = LINE;
    return;
  }
  if (slab == current) current = nullptr;
  drop(slab);
}

// Where the next part begins: behind the page that is just being written to, if it would reach it.
static size_t place(const Slab& slab, size_t needed) {
  const size_t behind = slab.busy ? slab.busy + LARGE_PAGE : 0;
  return slab.used < behind && slab.used + needed > slab.busy ? behind : slab.used;
}

uint8_t* weights_alloc(size_t bytes) {
  // In front of each part, in a line of its own, stands the slab that it is in.
  const size_t needed = round_up(bytes, LINE) + LINE;
  std::lock_guard<std::mutex> held(lock);
  Slab* slab = current;
  if (!MINILLM_SLABS || !slab || place(*slab, needed) + needed > slab->size) {
    slab = new_slab(MINILLM_SLABS && needed < SLAB / 2 ? SLAB - LINE : needed);
    if (MINILLM_SLABS && needed < SLAB / 2) {
      if (current && current->live == 0) drop(current);
      current = slab;
    }
  }
  const size_t at = place(*slab, needed);
  uint8_t* part = reinterpret_cast<uint8_t*>(slab) + at;
  *reinterpret_cast<Slab**>(part) = slab;
  slab->used = at + needed;
  slab->live++;
  return part + LINE;
}

void weights_free(uint8_t* data) {
  if (!data) return;
  std::lock_guard<std::mutex> held(lock);
  release(*reinterpret_cast<Slab**>(data - LINE));
}

void weights_expect(size_t bytes) {
  if (!MINILLM_SLABS) return;
  Slab* slab = bytes > SLAB ? new_slab(bytes + LARGE_PAGE) : nullptr;
  std::lock_guard<std::mutex> held(lock);
  if (current && current->live == 0) drop(current);
  current = slab;
}

// From the end on, while parts are taken from the beginning.
void weights_ready() {
  std::unique_lock<std::mutex> held(lock);
  Slab* slab = current;
  if (!slab) return;
  slab->live++;
  for (size_t at = slab->size - LARGE_PAGE; at >= slab->used && slab == current; at -= LARGE_PAGE) {
    slab->busy = at;
    held.unlock();
    auto* page = reinterpret_cast<volatile uint8_t*>(slab) + at;
    for (size_t i = 0; i < LARGE_PAGE; i += PAGE) page[i] = 0;  // the large page may be small ones
    held.lock();
    slab->busy = 0;
  }
  release(slab);
}

// For Python.

// Puts memory that somebody else has taken into large pages. What was written to is moved: at once
// from Linux 6.1 on, before that some time later. Where Linux can't, all stays as it is.
MINILLM_API void mm_in_large_pages(uint8_t* data, int64_t bytes) {
#if defined(__linux__)
  constexpr int COLLAPSE = 25;  // MADV_COLLAPSE, which older headers lack
  const size_t start = round_up(reinterpret_cast<uintptr_t>(data), LARGE_PAGE);
  const size_t end = (reinterpret_cast<uintptr_t>(data) + size_t(bytes)) / LARGE_PAGE * LARGE_PAGE;
  if (start >= end) return;
  madvise(reinterpret_cast<void*>(start), end - start, MADV_HUGEPAGE);
  madvise(reinterpret_cast<void*>(start), end - start, COLLAPSE);
#else
  (void)data, (void)bytes;
#endif
}

MINILLM_API void mm_expect(int64_t bytes) {
  try {
    weights_expect(size_t(bytes));
  } catch (const std::bad_alloc&) {  // each weight asks for its own memory then
  }
}

MINILLM_API void mm_ready() { weights_ready(); }

}  // namespace minillm
