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

  // Keys of all rows and heads stand in one long line, which is cut into equal pieces, one for each
  // thread: three heads keep two threads busy. A thread's piece of head s goes to slot s + thread:
  // along the line one of the two grows at each cut, so that no slot is used twice.
  int64_t line() const {
    int64_t total = 0;
    for (int64_t n = 0; n < step.N; n++) total += K * visible(step.positions[n]);
    return total;
  }

  // The piece of the line that is this thread's, between two places.
  Share piece(int64_t thread, int64_t total, int64_t start, int64_t end) const {
    const int64_t from = total * thread / team.threads, to = total * (thread + 1) / team.threads;
    return {most(from, start), least(to, end)};
  }

  void decode() {
    const int64_t total = line();
    int64_t start = 0;
    for (int64_t n = 0; n < step.N; n++) {
      const int64_t p = step.positions[n], length = visible(p);
      for (int64_t k = 0; k < K; k++, start += length) {
        const Share mine = piece(team.thread, total, start, start + length);
        if (mine.first >= mine.last) continue;
        Run found[4];
        const int64_t count = runs(p, mine.first - start, mine.last - start, found);
        const float* q = query(n) + k * G * D;
        f.attend(head(step.rows[n], k), found, count, q, G, D, part(n * K + k + team.thread));
      }
    }
    team.finish(ATTENTION);
  }

  // Joins the parts of each head.
  void merge() {
    const Share mine = team.share(step.N * K);
    const int64_t total = line();
    int64_t start = 0;
    for (int64_t i = 0; i < mine.last; i++) {
      const int64_t end = start + visible(step.positions[i / K]);
      Part whole{};
      for (int64_t thread = 0; i >= mine.first && thread < team.threads; thread++) {
        const Share piece_ = piece(thread, total, start, end);
        if (piece_.first >= piece_.last) continue;
        if (whole.mixed) join(whole, part(i + thread));
        else whole = part(i + thread);
      }
      if (whole.mixed) divide(whole, at.mixed + i * G * D);
      start = end;
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
