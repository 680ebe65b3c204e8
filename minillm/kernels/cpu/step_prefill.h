// Several tokens per row: the cache's keys and values as float32 first, then tiles of queries and
// keys.
#pragma once

#include "step_layer.h"

namespace minillm {

class Prefill : LayerView {
 public:
  using LayerView::LayerView;

  void run() {
    unpack();
    prefill();
  }

 private:
  // The keys that some query of row b sees, in order of position: `sinks` first ones, then those
  // from `oldest` on.
  struct Window {
    int64_t sinks, oldest, before, after;
    int64_t count() const { return sinks + after - oldest; }
    int64_t position(int64_t i) const { return i < sinks ? i : oldest + i - sinks; }
  };

  Window window(int64_t b) const {
    const int64_t before = step.before[b], oldest = first_near(before);
    const int64_t after = before + step.starts[b + 1] - step.starts[b];
    return {least(layer.sight.sinks, oldest), oldest, before, after};
  }

  Unpacked unpacked(int64_t b, int64_t k) const {
    const int64_t first = (b * K + k) * at.padded_keys;
    return {at.keys + first * D, at.values + first * at.width, at.positions + b * at.padded_keys,
            window(b).count(), at.width};
  }

  // A piece is the keys, or the values, of a head of a row. What is stored is read before the new
  // ones are written, because a ring may lose what a query of this step still sees; but a quantized
  // cache shows the new ones as it rounds them.
  void unpack() {
    const Share mine = team.share(2 * step.B * K);
    for (int64_t i = mine.first; i < mine.last; i++) {
      const int64_t b = i / 2 / K, k = i / 2 % K;
      const bool keys = i % 2;
      const Window w = window(b);
      if (w.after == w.before) continue;
      if (form.bits) append(b, k, keys, w);
      unpack_head(b, k, keys, w);
      if (!form.bits) append(b, k, keys, w);
      if (keys && k == 0) list_positions(b, w);
    }
    team.finish(ROPE);
  }

  void append(int64_t b, int64_t k, bool keys, const Window& w) {
    const HeadCache cached = head(b, k);
    for (int64_t p = w.before; p < w.after; p++) {
      if (p >= cache.sinks && p < w.after - cache.ring) continue;  // overwritten within the step
      const int64_t n = step.starts[b] + p - w.before;
      write(keys ? cached.keys : cached.values, keys, keys ? key(n, k) : value(n, k), p);
    }
  }

  void unpack_head(int64_t b, int64_t k, bool keys, const Window& w) {
    const HeadCache cached = head(b, k);
    const Unpacked to = unpacked(b, k);
    float row[MAX_HEAD];
    uint16_t narrow[MAX_HEAD];
    for (int64_t i = 0; i < w.count(); i++) {
      const int64_t p = w.position(i), n = step.starts[b] + p - w.before;
      if (p < w.before || form.bits) {
        f.read_row(cached, keys, place(p), D, row);
      } else if (form.numbers == Numbers::FLOAT32) {
        std::memcpy(row, keys ? key(n, k) : value(n, k), size_t(D) * sizeof(float));
      } else {  // as it is going to be stored
        f.narrow(keys ? key(n, k) : value(n, k), D, form.numbers, narrow);
        f.widen({narrow, form.numbers}, D, row);
      }
      put(to, keys, i, row);
    }
    const float none[MAX_HEAD] = {};
    for (int64_t i = w.count(); i % KEY_TILE; i++) put(to, keys, i, none);
  }

  void put(const Unpacked& to, bool keys, int64_t i, const float* row) const {
    if (keys) {
      float* tile = to.keys + i / KEY_TILE * KEY_TILE * D + i % KEY_TILE;
      for (int64_t d = 0; d < D; d++) tile[d * KEY_TILE] = row[d];
    } else {
      float* values = to.values + i * to.width;
      for (int64_t d = 0; d < to.width; d++) values[d] = d < D ? row[d] : 0.0f;
    }
  }

  void list_positions(int64_t b, const Window& w) const {
    int64_t* positions = at.positions + b * at.padded_keys;
    for (int64_t i = 0; i < at.padded_keys; i++) {
      positions[i] = i < w.count() ? w.position(i) : INT64_MAX;
    }
  }

  // Tiles differ in how much they see: threads take one after the other, the largest first.
  void prefill() {
    const int64_t size = most(f.tile_rows / G, 1), heads = step.B * K;
    const int64_t tiles = (step.longest + size - 1) / size;
    for (int64_t i = team.next(); i < tiles * heads; i = team.next()) {
      const int64_t first = (tiles - 1 - i / heads) * size, b = i % heads / K, k = i % K;
      const int64_t count = least(step.starts[b + 1] - step.starts[b] - first, size);
      if (count <= 0) continue;
      const int64_t n = step.starts[b] + first;
      const Queries queries = {
          query(n) + k * G * D, at.qkv_width, at.mixed + (n * model.H + k * G) * D, model.H * D,
          step.positions + n,   count,        G,                                    D};
      f.attend_tile(unpacked(b, k), queries, layer.sight, at.tiles + team.thread * at.tile_size);
    }
    team.finish(ATTENTION);
  }
};

}  // namespace minillm
