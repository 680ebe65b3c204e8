// Packing: weights as the products want them, made once when a model is loaded.
//
// Panels of 16 rows lie one after the other. Within a panel, a block of 32 columns is cut into
// words of 4 bytes, and word q of all 16 rows stands together: 64 bytes, one word for each lane of
// a wide vector. So a product needs no sums across a vector: lane n gathers row n.
//
//   4 bits: word q (0 to 3) of a row holds columns 4q..4q+3 in its low halves of bytes and columns
//           4q+16..4q+19 in its high halves, which is how ggml has the 16 bytes of a block.
//   8 bits: word q (0 to 7) holds columns 4q..4q+3, signed.
//
// Unsigned codes of 8 bits are stored less 128. In front of each group stand 16 scales, then 16
// zeros or minima. Scales keep the source's precision: float16 stays, all else is float32.
#include <cstring>
#include <memory>
#include <new>
#include <vector>

#include "export.h"
#include "pages.h"
#include "products.h"
#include "team.h"

namespace minillm {

static_assert(sizeof(void*) == 8, "row pointers and sizes are 64 bits");

// Row `index` of source matrix `part`.
struct Place {
  int64_t part, index;
};

// Where each row of the result comes from: parts one below the other, then taken in `order`.
static std::vector<Place> places(int64_t parts, const int64_t* part_rows, const int64_t* order) {
  std::vector<Place> stacked;
  for (int64_t p = 0; p < parts; p++) {
    for (int64_t i = 0; i < part_rows[p]; i++) stacked.push_back({p, i});
  }
  if (!order) return stacked;
  std::vector<Place> ordered;
  for (size_t i = 0; i < stacked.size(); i++) ordered.push_back(stacked[order[i]]);
  return ordered;
}

// Sizes of a coded weight, and its memory.
static Weight* new_coded(int bits, Offset offset, int fixed_zero, bool wide, int64_t rows,
                         int64_t cols, int64_t group_cols) {
  auto w = std::make_unique<Weight>();
  w->numbers = bits == 4 ? Numbers::CODES4 : Numbers::CODES8;
  w->offset = offset;
  w->fixed_zero = fixed_zero;
  w->wide_scales = wide;
  w->rows = rows;
  w->cols = cols;
  w->group_blocks = group_cols / BLOCK;
  w->groups = cols / group_cols;
  const int64_t offset_bytes = offset == Offset::MINIMA ? 2 : offset == Offset::ZEROS ? 1 : 0;
  w->head_bytes = PANEL * ((wide ? 4 : 2) + offset_bytes);
  w->block_bytes = PANEL * BLOCK * bits / 8;
  w->group_bytes = w->head_bytes + w->group_blocks * w->block_bytes;
  w->panel_bytes = w->groups * w->group_bytes;
  w->data = weights_alloc(size_t(w->panels() * w->panel_bytes));
  return w.release();
}

// The words of one row's block, to their places between those of the other rows.
static void put_words(const Weight& w, uint8_t* block, int64_t r, const uint8_t* words) {
  const int64_t count = w.block_bytes / PANEL / 4;
  for (int64_t q = 0; q < count; q++) std::memcpy(block + 64 * q + 4 * r, words + 4 * q, 4);
}

static void pack_blocks_panel(const Weight& w, int64_t p, const uint8_t* const* data,
                              const std::vector<Place>& place) {
  uint8_t* panel = w.data + p * w.panel_bytes;
  const int64_t row_blocks = w.cols / BLOCK, head = w.head_bytes / PANEL;
  const int64_t bytes = head + w.block_bytes / PANEL;  // of a block in the file
  if ((p + 1) * PANEL > w.rows) std::memset(panel, 0, size_t(w.panel_bytes));
  for (int64_t r = 0; r < PANEL && p * PANEL + r < w.rows; r++) {
    const Place from = place[size_t(p * PANEL + r)];
    const uint8_t* source = data[from.part] + from.index * row_blocks * bytes;
    for (int64_t b = 0; b < row_blocks; b++, source += bytes) {
      uint8_t* group = panel + b * w.group_bytes;
      std::memcpy(group + 2 * r, source, 2);
      if (w.offset == Offset::MINIMA) std::memcpy(group + 2 * (PANEL + r), source + 2, 2);
      put_words(w, group + w.head_bytes, r, source + head);
    }
  }
}

// Eight codes of 4 bits, each to a byte of its own.
static uint64_t spread(uint64_t x) {
  x = (x | x << 16) & 0x0000ffff0000ffff;
  x = (x | x << 8) & 0x00ff00ff00ff00ff;
  return (x | x << 4) & 0x0f0f0f0f0f0f0f0f;
}

// 32 codes as Python has them, column after column, to the words of a block.
static void order_codes(const Weight& w, const uint8_t* codes, uint8_t* words) {
  if (w.numbers == Numbers::CODES8) {
    for (int64_t i = 0; i < BLOCK; i++) words[i] = codes[i] ^ 128;
    return;
  }
  for (int half = 0; half < 2; half++) {
    uint32_t low, high;  // columns 8·half on, and columns 16 + 8·half on
    std::memcpy(&low, codes + 4 * half, 4);
    std::memcpy(&high, codes + 8 + 4 * half, 4);
    const uint64_t both = spread(low) | spread(high) << 4;
    std::memcpy(words + 8 * half, &both, 8);
  }
}

struct Groups {
  const uint8_t* const* codes;   // of each part: (rows, cols) bytes, or (rows, cols/2)
  const void* const* scales;     // (rows, groups)
  const uint8_t* const* zeros;   // (rows, groups)
  Numbers scale_type;
};

static void put_scale(const Weight& w, const Groups& from, Place at, int64_t g, uint8_t* to) {
  const int64_t i = at.index * w.groups + g;
  const void* scales = from.scales[at.part];
  if (!w.wide_scales) {
    std::memcpy(to, static_cast<const float16*>(scales) + i, 2);
    return;
  }
  const float scale = from.scale_type == Numbers::FLOAT32
                          ? static_cast<const float*>(scales)[i]
                          : to_float(static_cast<const bfloat16*>(scales)[i]);
  std::memcpy(to, &scale, 4);
}

static void pack_groups_panel(const Weight& w, int64_t p, const Groups& from,
                              const std::vector<Place>& place) {
  uint8_t* panel = w.data + p * w.panel_bytes;
  const int64_t width = w.wide_scales ? 4 : 2, code_bytes = w.block_bytes / PANEL;
  if ((p + 1) * PANEL > w.rows) std::memset(panel, 0, size_t(w.panel_bytes));
  for (int64_t r = 0; r < PANEL && p * PANEL + r < w.rows; r++) {
    const Place at = place[size_t(p * PANEL + r)];
    const uint8_t* codes = from.codes[at.part] + at.index * w.cols / BLOCK * code_bytes;
    for (int64_t g = 0; g < w.groups; g++) {
      uint8_t* group = panel + g * w.group_bytes;
      put_scale(w, from, at, g, group + width * r);
      group[width * PANEL + r] = from.zeros[at.part][at.index * w.groups + g];
      for (int64_t b = 0; b < w.group_blocks; b++, codes += code_bytes) {
        uint8_t words[BLOCK];
        order_codes(w, codes, words);
        put_words(w, group + w.head_bytes + b * w.block_bytes, r, words);
      }
    }
  }
}

// For Python, which has checked every shape. Matrices of one kind are stacked, their rows then
// taken in `order` if there is one. Null where memory does not suffice.

template <typename F>
static Weight* try_to(F make) {
  try {
    return make();
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

MINILLM_API Weight* mm_pack_blocks(int32_t kind, int64_t parts, const uint8_t* const* data,
                                   const int64_t* part_rows, const int64_t* order, int64_t cols) {
  return try_to([&] {
    const auto place = places(parts, part_rows, order);
    const auto k = BlockKind(kind);
    const Offset offset = k == BlockKind::Q4_1 ? Offset::MINIMA : Offset::FIXED;
    Weight* w = new_coded(k == BlockKind::Q8_0 ? 8 : 4, offset, k == BlockKind::Q4_0 ? 8 : 0, false,
                          int64_t(place.size()), cols, BLOCK);
#pragma omp parallel for num_threads(usual_threads())
    for (int64_t p = 0; p < w->panels(); p++) pack_blocks_panel(*w, p, data, place);
    return w;
  });
}

MINILLM_API Weight* mm_pack_groups(int32_t bits, int32_t scale_type, int64_t parts,
                                   const uint8_t* const* codes, const void* const* scales,
                                   const uint8_t* const* zeros, const int64_t* part_rows,
                                   const int64_t* order, int64_t cols, int64_t group_cols) {
  return try_to([&] {
    const auto place = places(parts, part_rows, order);
    const Groups from = {codes, scales, zeros, Numbers(scale_type)};
    const bool wide = from.scale_type != Numbers::FLOAT16;
    Weight* w = new_coded(bits, Offset::ZEROS, bits == 8 ? -128 : 0, wide, int64_t(place.size()),
                          cols, group_cols);
#pragma omp parallel for num_threads(usual_threads())
    for (int64_t p = 0; p < w->panels(); p++) pack_groups_panel(*w, p, from, place);
    return w;
  });
}

MINILLM_API Weight* mm_pack_floats(int32_t numbers, int64_t parts, const uint8_t* const* data,
                                   const int64_t* part_rows, const int64_t* order, int64_t cols) {
  return try_to([&] {
    const auto place = places(parts, part_rows, order);
    const int64_t width = Numbers(numbers) == Numbers::FLOAT32 ? 4 : 2;
    auto w = std::make_unique<Weight>();
    w->numbers = Numbers(numbers);
    w->rows = int64_t(place.size());
    w->cols = cols;
    w->row = new const void*[place.size()];
    for (size_t n = 0; n < place.size(); n++) {
      w->row[n] = data[place[n].part] + place[n].index * cols * width;
    }
    return w.release();
  });
}

}  // namespace minillm
