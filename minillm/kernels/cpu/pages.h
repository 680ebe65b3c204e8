// Memory in large pages, where the system has them: for packed weights, and for long KV caches.
#pragma once

#include <cstddef>
#include <cstdint>

namespace minillm {

// `bytes` of memory, aligned to a cache line; throws std::bad_alloc. weights_free gives it back;
// null is nothing to give back. Both may be called from any thread.
uint8_t* weights_alloc(size_t bytes);
void weights_free(uint8_t* data);

// Sets memory aside for the next weights, `bytes` in all; 0: no more are to come. `weights_ready`
// has the system provide that memory, and may run in a thread of its own while others use it.
void weights_expect(size_t bytes);
void weights_ready();

}  // namespace minillm
