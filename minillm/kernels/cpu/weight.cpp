// What a weight's rows stand for, one number at a time: embeddings are looked up with it, and tests
// compare it with the source. pack.cpp says where each code lies.
#include <cstring>
#include <new>

#include "export.h"
#include "pages.h"
#include "products.h"

namespace minillm {

// One code of a row, and what its group makes of it.
static float value_at(const Weight& w, int64_t n, int64_t c) {
  const int64_t r = n % PANEL, b = c / BLOCK, i = c % BLOCK;
  const uint8_t* group = w.data + n / PANEL * w.panel_bytes + b / w.group_blocks * w.group_bytes;
  const uint8_t* block = group + w.head_bytes + b % w.group_blocks * w.block_bytes;
  const bool wide = w.wide_scales;
  float scale;
  float16 narrow;
  std::memcpy(&narrow, group + 2 * r, 2);
  std::memcpy(&scale, group + (wide ? 4 : 0) * r, 4);
  if (!wide) scale = to_float(narrow);
  const uint8_t* offsets = group + (wide ? 4 : 2) * PANEL;
  const int64_t at = 4 * r + i % 4;
  int code = int8_t(block[64 * (i / 4 % (w.block_bytes / 64)) + at]);
  if (w.numbers == Numbers::CODES4) code = i < 16 ? code & 15 : code >> 4 & 15;
  if (w.offset == Offset::MINIMA) {
    std::memcpy(&narrow, offsets + 2 * r, 2);
    return float(code) * scale + to_float(narrow);
  }
  const int zero = w.fixed_zero + (w.offset == Offset::ZEROS ? offsets[r] : 0);
  return float(code - zero) * scale;
}

template <typename T>
static void copy_row(const void* row, int64_t cols, float* out) {
  for (int64_t c = 0; c < cols; c++) out[c] = to_float(static_cast<const T*>(row)[c]);
}

void dequantize_row(const Weight& w, int64_t n, float* out) {
  switch (w.numbers) {
    case Numbers::FLOAT32: return copy_row<float>(w.row[n], w.cols, out);
    case Numbers::BFLOAT16: return copy_row<bfloat16>(w.row[n], w.cols, out);
    case Numbers::FLOAT16: return copy_row<float16>(w.row[n], w.cols, out);
    default:
      for (int64_t c = 0; c < w.cols; c++) out[c] = value_at(w, n, c);
  }
}

void dequantize_blocks(BlockKind kind, const uint8_t* row, int64_t cols, float* out) {
  for (int64_t b = 0; b < cols / BLOCK; b++, out += BLOCK) {
    float16 head[2];
    std::memcpy(head, row, 4);
    const float scale = to_float(head[0]);
    const uint8_t* codes = row + (kind == BlockKind::Q4_1 ? 4 : 2);
    if (kind == BlockKind::Q8_0) {
      for (int i = 0; i < 32; i++) out[i] = float(int8_t(codes[i])) * scale;
      row = codes + 32;
      continue;
    }
    const float minimum = kind == BlockKind::Q4_1 ? to_float(head[1]) : -8.0f * scale;
    for (int i = 0; i < 16; i++) {
      out[i] = float(codes[i] & 15) * scale + minimum;
      out[i + 16] = float(codes[i] >> 4) * scale + minimum;
    }
    row = codes + 16;
  }
}

// For Python.

// Bytes that the packed weight takes, beside what it only points to.
MINILLM_API int64_t mm_weight_bytes(const Weight* w) {
  return w->coded() ? w->panels() * w->panel_bytes : w->rows * int64_t(sizeof(void*));
}

MINILLM_API void mm_free(Weight* w) {
  if (!w) return;
  weights_free(w->data);
  delete[] w->row;
  delete w;
}

MINILLM_API void mm_dequantize_row(const Weight* w, int64_t n, float* out) {
  dequantize_row(*w, n, out);
}

MINILLM_API void mm_dequantize_blocks(int32_t kind, const uint8_t* row, int64_t cols, float* out) {
  dequantize_blocks(BlockKind(kind), row, cols, out);
}

}  // namespace minillm
