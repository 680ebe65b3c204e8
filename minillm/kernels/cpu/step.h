// A whole forward pass in one call. Python describes the model once (`Model`), and for each step
// its tokens (`Step`) and the cache; minillm/engines/cpu_structs.py has the same structs field by
// field, so that both files change together. All sizes and pointers are checked there.
#pragma once

#include "attention.h"

namespace minillm {

// A linear layer: its packed weights, and its bias, if any.
struct Linear {
  const Weight* weight;
  Vector bias;
};

struct Layer {
  Linear q, k, v, o, gate, up, down;
  // Where a model has no such norm, there is no data. What attention and MLP give is normalised
  // before it is added (attention_out, mlp_out) in models whose norms stand "after" or "both".
  Vector attention_in, q_norm, k_norm, attention_out, mlp_in, mlp_out;
  Sight sight;
  int64_t rope;  // which of the step's tables; -1: queries and keys are not turned
};

struct Model {
  const Layer* layers;
  int64_t num_layers, H, K, D, C, F;
  const Weight* embedding;          // or, where it is null, blocks as they are in the file:
  const uint8_t* embedding_blocks;  // (V, C/32 blocks)
  int64_t embedding_row_bytes;
  Vector norm;                      // the last one
  BlockKind embedding_kind;
  int32_t gelu;                     // the MLP's gate: silu, or gelu in its tanh approximation
  int32_t whole_norm;               // q_norm and k_norm are over all heads of a token
  float eps, norm_offset;
  float query_scale;                // scores are q · k times this
  float embedding_scale;
};

// Tables of cosines and sines, (rows, pairs).
struct Rope {
  const float *cos, *sin;
  int64_t pairs;
  int64_t by_token;  // row n is of token n of this step; else row p of any token at position p
};

// The cache of one layer. Token p of a row is at place p where p < sinks, else at
// sinks + (p - sinks) mod ring; a cache that keeps all has a ring of `places`.
struct LayerCache {
  Store keys, values;
  int64_t ring, sinks;
  int64_t places;  // of exact numbers per row and head
  int64_t blocks;  // of codes per row and head
};

// N tokens of B rows, those of a row one behind the other. Padding is left out.
struct Step {
  int64_t N, B;
  int64_t longest;           // the most tokens that a row brings
  int64_t longest_after;     // the most tokens that a row holds then
  const int64_t* ids;        // (N,)
  const int64_t* rows;       // (N,)
  const int64_t* positions;  // (N,)
  const int64_t* starts;     // (B + 1,): tokens starts[b] … starts[b + 1] - 1 are row b's
  const int64_t* before;     // (B,): tokens that the cache held
  const Rope* ropes;
  const CacheForm* form;
  const LayerCache* caches;  // (num_layers,)
  float* hidden;             // (N, C): the result
  double* seconds;           // (STAGES,) or null
  int64_t threads;
};

// What a step's time is measured by.
enum Stage : int { EMBED, NORM, QKV, ROPE, ATTENTION, MERGE, OUT, GATE_UP, DOWN, STAGES };

}  // namespace minillm
