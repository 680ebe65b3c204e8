// What a step does to activations between its matrix products: norms, rotation, gating, and
// attention on the cache as it is stored. Each function works on one piece (a token, a head, a run
// of keys) in one thread; step.cpp deals the pieces out. attention.inl is compiled once for each
// instruction set (dispatch.h), and `AttentionFunctions` is the table of one of them.
#pragma once

#include <math.h>

#include <cstdint>

#include "products.h"

namespace minillm {

constexpr int64_t MAX_HEAD = 512;  // D at most; Python refuses a wider head

// Numbers in memory that Python keeps alive; no data: there are none.
struct Vector {
  const void* data;
  Numbers numbers;  // FLOAT32, BFLOAT16 or FLOAT16
};

// How a cache stores keys and values, the same in all layers.
struct CacheForm {
  Numbers numbers;          // of those that are kept exact
  int32_t bits;             // 8 or 4: full blocks of 32 tokens are codes; 0: everything is exact
  int64_t value_channels;   // channels of a value that share a scale
  int64_t key_channels;     // the same of keys, or 0: a scale is of one channel of 32 tokens
};

// The keys, or the values, of one layer, or of one head of it.
// exact: (B, K, places, D). In a quantized cache these are the open blocks, of 32 places, and full
// ones are codes (B, K, blocks, 32, D), in D/2 bytes for 4 bits, with scales and minima, bfloat16,
// (B, K, blocks, D) by channel or (B, K, blocks, 32, D / channels) by token:
// code · scale + minimum.
struct Store {
  uint8_t* exact;
  uint8_t* codes;
  uint16_t* scales;
  uint16_t* minima;
};

// One head of one row in the cache.
struct HeadCache {
  const CacheForm* form;
  Store keys, values;
  int64_t full;  // tokens that are codes, a multiple of 32
};

// Keys that lie one behind the other: `count` of them from place `first` on.
struct Run {
  int64_t first, count;
};

// An unfinished softmax over some of the keys, for each of G queries: the highest score so far, the
// sum of e^(score - highest), and the values weighted by that. Two such parts can be joined.
// Source: Milakov and Gimelshein 2018, arXiv 1805.02867, algorithm 3.
struct Part {
  float* highest;  // (G,)
  float* total;    // (G,)
  float* mixed;    // (G, D)
};

// Keys and values of one head of one row as float32, in the order of their positions, for steps of
// many tokens. keys: tiles of KEY_TILE keys, (D, KEY_TILE) each, so that a vector holds the same
// channel of neighbouring keys; values: (S, width), D rounded up to ROUNDED with zeros.
constexpr int64_t KEY_TILE = 64;
constexpr int64_t ROUNDED = 16;
struct Unpacked {
  float* keys;
  float* values;
  int64_t* positions;  // (S rounded up to KEY_TILE,), of the keys; past the last: INT64_MAX
  int64_t count;       // S
  int64_t width;
};

// What queries see: window 0 is unlimited.
struct Sight {
  int64_t window, sinks;
};

// Some queries of one row, of all heads of a group: query i of head g lies at i · stride + g · D,
// and its result goes to the same place of `out`, with a stride of its own.
struct Queries {
  const float* q;
  int64_t stride;
  float* out;
  int64_t out_stride;
  const int64_t* positions;  // (count,), increasing
  int64_t count, G, D;
};

struct AttentionFunctions {
  // y = x / sqrt(mean(x²) + eps) · (weight + offset), over `size` values. y may be x.
  void (*rms_norm)(const float* x, Vector weight, float offset, float eps, int64_t size, float* y);
  // Turns `pairs` pairs (x[i], x[i + pairs]) of a head.
  void (*rope)(float* x, const float* cos, const float* sin, int64_t pairs);
  // y = silu(gate) · up, or with `gelu` its tanh approximation instead.
  void (*gate)(bool gelu, const float* gate, const float* up, int64_t size, float* y);
  // Numbers of a 16-bit type, or float32, to float32 and back.
  void (*widen)(Vector x, int64_t size, float* y);
  void (*narrow)(const float* x, int64_t size, Numbers numbers, void* y);
  // Rounds an open block (32, D) to codes: `quantize_kv` of minillm/kv_cache/groups.py.
  void (*fill_block)(const CacheForm& form, bool keys, const Store& store, int64_t block,
                     int64_t D);
  // One query per head: q (G, D), scaled, against the keys of the runs; the part is begun here.
  void (*attend)(const HeadCache& head, const Run* runs, int64_t num_runs, const float* q,
                 int64_t G, int64_t D, const Part& part);
  // Key or value at a place as float32 (D,).
  void (*read_row)(const HeadCache& head, bool keys, int64_t place, int64_t D, float* out);
  // Many queries per head, against unpacked keys. scratch: tile_floats(count · G, D) floats.
  void (*attend_tile)(const Unpacked& kv, const Queries& queries, Sight sight, float* scratch);
  // How many queries of G heads make a good tile.
  int64_t tile_rows;
};

// Floats of scratch that attend_tile needs for `rows` queries (over all heads) of D values.
inline int64_t tile_floats(int64_t rows, int64_t D) {
  const int64_t width = (D + ROUNDED - 1) / ROUNDED * ROUNDED;
  return rows * (width + width + KEY_TILE + 2);
}

}  // namespace minillm
