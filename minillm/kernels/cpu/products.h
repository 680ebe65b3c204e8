// Products of a weight matrix (N, C) with the activations (M, C) of M tokens: what a decode step
// spends its time on. This header is all that the rest of the engine needs to know of them.
//
// Weights are packed once (pack.cpp) and read in every step (product.inl). With coded weights,
// activations are rounded to 8 bits too, 32 columns at a time, so that the inner sum is one of
// whole numbers, for which processors have their fastest instructions:
//
//   y[m,n] = bias[n] + Σ_b  scale[n,b] · xscale[m,b] · Σ_{c in b} code[n,c] · xcode[m,c]
//                         + minimum[n,b] · xscale[m,b] · Σ_{c in b} xcode[m,c]
//
// where b runs over blocks of 32 columns and float32 sums them. A weight is worth
// scale · code + minimum; a zero point z is the minimum -z · scale.
//
// Nothing here starts threads, but for the mm_pack functions: a step calls `quantize` and
// `product` from within its one parallel region, each thread with a range of its own.
#pragma once

#include <cstdint>

#include "floats.h"

namespace minillm {

constexpr int64_t BLOCK = 32;  // columns that share a scale of the activations
constexpr int64_t PANEL = 16;  // rows that are stored, and multiplied, together

// What a weight's numbers are: codes of 4 or 8 bits, or floating point as it is.
enum class Numbers : int32_t { CODES4, CODES8, FLOAT32, BFLOAT16, FLOAT16 };

// How a code becomes a number: scale · code + minimum, with the minimum
//   FIXED: -zero_point · scale, one zero point for all (8 in Q4_0; 0 in Q8_0);
//   ZEROS: -zero · scale, one whole number per group; MINIMA: a float16 of its own per group.
enum class Offset : int32_t { FIXED, ZEROS, MINIMA };

// A matrix of `rows` × `cols`. Codes lie in panels of 16 rows: for each group of columns a head
// (16 scales; 16 zeros or minima, if any), then for each block of 32 columns 16·16 bytes (4 bits)
// or 16·32 (8 bits). pack.cpp says in which order. Rows past the last are zeros.
struct Weight {
  Numbers numbers;
  Offset offset;
  int32_t fixed_zero;
  bool wide_scales;       // scales are float32, else float16
  int64_t rows, cols;
  int64_t group_blocks;   // blocks that share a scale
  int64_t groups;         // of a row
  int64_t head_bytes, block_bytes, group_bytes, panel_bytes;
  uint8_t* data;          // codes: the panels
  const void** row;       // floating point: where each row is, in memory that Python keeps alive

  static constexpr int64_t ALIGNMENT = 64;  // of data: a cache line, and the widest vector

  int64_t panels() const { return (rows + PANEL - 1) / PANEL; }
  bool coded() const { return numbers == Numbers::CODES4 || numbers == Numbers::CODES8; }
};

// The activations of M tokens, contiguous. Coded weights read codes, scales and sums; floating
// point ones read values. What a weight does not read may be null.
struct Activations {
  const float* values;  // (M, C)
  int8_t* codes;        // (M, C), -127 to 127
  float* scales;        // (M, C/32)
  int32_t* sums;        // (M, C/32): of a block's codes
};

// Rounds blocks [first, last) of 32 values, counted through the whole of x (M·C values):
// scale = max|x| / 127, code = x / scale to nearest, halves to even; the meaning is
// kernels/reference.py's quantize_blocks. Threads may share a single row: they split its blocks.
void quantize(const Activations& x, int64_t first, int64_t last);

// y[m·ldy + n] for all M tokens and rows n in [first, last). bias (N,) may be null. Ranges that
// begin and end at multiples of PANEL waste nothing; every other range is right too. A token's
// result is the same, to the bit, whatever the range and whichever other tokens there are.
void product(const Weight& w, const Activations& x, int64_t M, int64_t first, int64_t last,
             float* y, int64_t ldy, const float* bias);

// Row n as float32: out (C,). How an embedding is looked up.
void dequantize_row(const Weight& w, int64_t n, float* out);

// A row of ggml blocks as it is in the file, as float32: out (cols,).
enum class BlockKind : int32_t { Q4_0, Q4_1, Q8_0 };
void dequantize_blocks(BlockKind kind, const uint8_t* row, int64_t cols, float* out);

// The name of the variant in use: "portable", "avx2", "avx512", "neon".
const char* variant_name();

}  // namespace minillm
