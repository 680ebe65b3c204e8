// The memory of one step: allocated when it begins, all at once, so that steps share nothing and
// several may run at the same time.
//
// AddressSanitizer sees where an allocation ends, but not where a buffer within it does. When it
// watches, the room between two buffers is therefore wider, and forbidden ("poisoned").
#pragma once

#include <cstdlib>

#include "dispatch.h"
#include "step.h"

#if defined(__has_feature)  // clang; GCC defines the macro itself
#if __has_feature(address_sanitizer) && !defined(__SANITIZE_ADDRESS__)
#define __SANITIZE_ADDRESS__ 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

namespace minillm {

// Norms, projections and the MLP run on so many tokens at a time: their buffers then stay in the
// processor's cache, and small, however long a prompt is.
constexpr int64_t CHUNK_TOKENS = 256;

// Keys of a head that make one piece of the work of a decode step: two batches of attention.
// Smaller ones keep threads more equally busy, larger ones leave less to join.
constexpr int64_t PIECE = 256;

inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

// The most keys of a row that a layer reads in a step: all of them, or those that lie in the window
// of one of its queries. In a text without end only the windows stay small.
inline int64_t most_keys(const Model& m, const Step& s) {
  int64_t found = 0;
  for (int64_t l = 0; l < m.num_layers; l++) {
    const Sight& sight = m.layers[l].sight;
    const int64_t window = sight.window ? least(sight.window, s.longest_after) : s.longest_after;
    found = most(found, least(window + s.longest + sight.sinks, s.longest_after));
  }
  return found;
}

struct Buffers {
  char* all;
  const AttentionFunctions* functions;  // the same for all of a step, whatever mm_use does
  float* normed;       // (M, C), M = CHUNK_TOKENS at most
  Activations input;   // of the next product: (M, C) or (M, H·D)
  float* qkv;          // (N, qkv_width): queries, keys and values side by side
  int64_t qkv_width;   // (H + 2K)·D
  float* mixed;        // (N, H·D): what attention gives
  float* sum;          // (N, C): what is to be added to the residual stream
  float *gated, *up;   // (M, F)
  int8_t* gated_codes;
  float* gated_scales;
  int32_t* gated_sums;
  float* biases;       // (threads, widest)
  int64_t widest;
  // Unfinished softmaxes, (N·K·pieces, G·(D + 2)): in steps of one token per row.
  float* parts;
  float* tiles;        // scratch of attend_tile, (threads, tile_size): steps of several
  int64_t tile_size;
  float* keys;         // as float32, (B·K, padded_keys·D), and so
  float* values;       // (B·K, padded_keys·width)
  int64_t padded_keys, width;
  int64_t* positions;  // (B, padded_keys)
};

class Memory {
 public:
  Memory(const Model& m, const Step& s) : buffers() {
    const int64_t G = m.H / m.K, M = least(s.N, CHUNK_TOKENS), wide = m.H * m.D;
    Buffers& b = buffers;
    b.qkv_width = (m.H + 2 * m.K) * m.D;
    b.widest = most(most(m.F, m.C), wide);
    b.width = (m.D + ROUNDED - 1) / ROUNDED * ROUNDED;
    b.padded_keys = (most_keys(m, s) + KEY_TILE - 1) / KEY_TILE * KEY_TILE;
    b.functions = current().attention;
    b.tile_size = tile_floats(most(b.functions->tile_rows, G), m.D);
    const int64_t pieces = (most_keys(m, s) + PIECE - 1) / PIECE;
    const bool one = s.longest == 1;
    for (int pass = 0; pass < 2; pass++) {  // first the sizes, then the places
      size = 0;
      place(b.normed, M * m.C);
      place(b.input.codes, M * most(m.C, wide));
      place(b.input.scales, M * (most(m.C, wide) / BLOCK));
      place(b.input.sums, M * (most(m.C, wide) / BLOCK));
      place(b.qkv, s.N * b.qkv_width);
      place(b.mixed, s.N * wide);
      place(b.sum, s.N * m.C);
      place(b.gated, M * m.F);
      place(b.up, M * m.F);
      place(b.gated_codes, M * m.F);
      place(b.gated_scales, M * (m.F / BLOCK));
      place(b.gated_sums, M * (m.F / BLOCK));
      place(b.biases, s.threads * b.widest);
      place(b.parts, one ? s.N * m.K * pieces * G * (m.D + 2) : 0);
      place(b.tiles, one ? 0 : s.threads * b.tile_size);
      place(b.keys, one ? 0 : s.B * m.K * b.padded_keys * m.D);
      place(b.values, one ? 0 : s.B * m.K * b.padded_keys * b.width);
      place(b.positions, one ? 0 : s.B * b.padded_keys);
      if (pass == 0) b.all = static_cast<char*>(std::malloc(size + LINE));
      if (!b.all) return;
    }
  }
  ~Memory() { std::free(buffers.all); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  Buffers buffers;

 private:
  static constexpr size_t LINE = 64;  // bytes of a cache line: two threads never write to the same
#ifdef __SANITIZE_ADDRESS__
  static constexpr size_t GUARD = 16 * LINE;  // an overrun of several vectors, or of a row
#else
  static constexpr size_t GUARD = 0;
#endif

  template <typename T>
  void place(T*& pointer, int64_t count) {
    const size_t base = (reinterpret_cast<size_t>(buffers.all) + LINE - 1) / LINE * LINE;
    const size_t begin = size, end = begin + size_t(count) * sizeof(T);
    pointer = reinterpret_cast<T*>(base + begin);
    size = (end + LINE - 1) / LINE * LINE + GUARD;
#ifdef __SANITIZE_ADDRESS__
    if (buffers.all) ASAN_POISON_MEMORY_REGION(reinterpret_cast<char*>(base + end), size - end);
#endif
  }

  size_t size = 0;
};

}  // namespace minillm
