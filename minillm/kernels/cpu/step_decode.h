// One token per row: each query against the cache, straight on what is stored. The threads share
// the keys, whatever heads these belong to; the parts of a head are joined afterwards.
#pragma once

#include <cmath>

#include "step_layer.h"

namespace minillm {

class Decode : LayerView {
 public:
  using LayerView::LayerView;

  void run() {
    decode();
    merge();
  }

 private:
  // Of the keys that this query sees, in order, those from `first` to `last` as runs of places.
  int64_t runs(int64_t position, int64_t first, int64_t last, Run* found) const {
    const int64_t oldest = first_near(position), sinks = least(layer.sight.sinks, oldest);
    int64_t count = 0;
    for (int64_t i = first; i < last;) {
      const int64_t p = i < sinks ? i : oldest + i - sinks;  // its position
      int64_t length = (i < sinks ? sinks : last) - i;
      const int64_t border = p < cache.sinks
                                 ? cache.sinks
                                 : cache.sinks + ((p - cache.sinks) / cache.ring + 1) * cache.ring;
      length = least(least(length, last - i), border - p);
      found[count++] = {place(p), length};
      i += length;
    }
    return count;
  }

  Part part(int64_t slot) const {
    float* start = at.parts + slot * G * (D + 2);
    return {start, start + G, start + 2 * G};
  }

  // The keys of all rows and heads stand in one long line. Each thread has an equal part of it, and
  // takes the pieces that begin there: three heads keep two threads busy. Where a head's pieces
  // begin depends on nothing else, so that a row gets the same result, to the bit, alone, in a
  // batch, and from any number of threads.
  void decode() {
    int64_t total = 0, start = 0, slot = 0;
    for (int64_t n = 0; n < step.N; n++) total += K * visible(step.positions[n]);
    const int64_t from = total * team.thread / team.threads;
    const int64_t to = total * (team.thread + 1) / team.threads;
    for (int64_t n = 0; n < step.N; n++) {
      const int64_t p = step.positions[n], length = visible(p);
      for (int64_t k = 0; k < K; k++, start += length) {
        const float* q = query(n) + k * G * D;
        for (int64_t first = 0; first < length; first += PIECE, slot++) {
          if (start + first < from || start + first >= to) continue;
          Run found[4];
          const int64_t count = runs(p, first, least(first + PIECE, length), found);
          f.attend(head(step.rows[n], k), found, count, q, G, D, part(slot));
        }
      }
    }
    team.finish(ATTENTION);
  }

  // Joins the parts of each head, in the order of its pieces.
  void merge() {
    const Share mine = team.share(step.N * K);
    int64_t slot = 0;
    for (int64_t i = 0; i < mine.last; i++) {
      const int64_t pieces = (visible(step.positions[i / K]) + PIECE - 1) / PIECE;
      if (i >= mine.first) {
        const Part whole = part(slot);
        for (int64_t s = 1; s < pieces; s++) join(whole, part(slot + s));
        divide(whole, at.mixed + i * G * D);
      }
      slot += pieces;
    }
    team.finish(MERGE);
  }

  void join(const Part& a, const Part& b) const {
    for (int64_t g = 0; g < G; g++) {
      const float top = a.highest[g] > b.highest[g] ? a.highest[g] : b.highest[g];
      const float base = top == -INFINITY ? 0.0f : top;
      const float x = expf(a.highest[g] - base), y = expf(b.highest[g] - base);
      a.highest[g] = top;
      a.total[g] = a.total[g] * x + b.total[g] * y;
      for (int64_t d = g * D; d < g * D + D; d++) a.mixed[d] = a.mixed[d] * x + b.mixed[d] * y;
    }
  }

  void divide(const Part& whole, float* out) const {
    for (int64_t g = 0; g < G; g++) {
      for (int64_t d = g * D; d < g * D + D; d++) out[d] = whole.mixed[d] / whole.total[g];
    }
  }
};

}  // namespace minillm
