// Memory for packed weights, in large pages where the system has them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace minillm {

// `bytes` of memory, aligned to a cache line; throws std::bad_alloc. weights_free gives it back;
// null is nothing to give back. Both may be called from any thread.
uint8_t* weights_alloc(size_t bytes);
void weights_free(uint8_t* data);

}  // namespace minillm
