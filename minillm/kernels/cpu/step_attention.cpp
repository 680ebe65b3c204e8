// Attention of one layer: norm and rotation of queries and keys, then one of two ways through the
// cache.
#include "step_attention.h"

#include "step_decode.h"
#include "step_prefill.h"

namespace minillm {

namespace {

class Rotation : LayerView {
 public:
  using LayerView::LayerView;

  void run() {
    if (model.whole_norm && layer.q_norm.data) norm_all_heads();
    turn();
  }

 private:
  void norm_all_heads() {
    const Share mine = team.share(step.N);
    for (int64_t n = mine.first; n < mine.last; n++) {
      float *q = query(n), *k = key(n, 0);
      f.rms_norm(q, layer.q_norm, model.norm_offset, model.eps, model.H * D, q);
      f.rms_norm(k, layer.k_norm, model.norm_offset, model.eps, K * D, k);
    }
    team.finish(ROPE);
  }

  // Norm and rotation of one head of token n.
  void turn_head(float* x, int64_t n, const Vector& weight) {
    if (weight.data && !model.whole_norm) {
      f.rms_norm(x, weight, model.norm_offset, model.eps, D, x);
    }
    if (layer.rope < 0) return;
    const Rope& rope = step.ropes[layer.rope];
    const int64_t row = (rope.by_token ? n : step.positions[n]) * rope.pairs;
    f.rope(x, rope.cos + row, rope.sin + row, rope.pairs);
  }

  // A piece is a key head of a token with its queries; in decoding it goes to the cache at once.
  void turn() {
    const Share mine = team.share(step.N * K);
    for (int64_t i = mine.first; i < mine.last; i++) {
      const int64_t n = i / K, k = i % K;
      turn_head(key(n, k), n, layer.k_norm);
      for (int64_t g = 0; g < G; g++) {
        float* q = query(n) + (k * G + g) * D;
        turn_head(q, n, layer.q_norm);
        for (int64_t d = 0; d < D; d++) q[d] *= model.query_scale;
      }
      if (step.longest == 1) {
        const int64_t b = step.rows[n];
        write(head(b, k).keys, true, key(n, k), step.positions[n]);
        write(head(b, k).values, false, value(n, k), step.positions[n]);
      }
    }
    team.finish(ROPE);
  }
};

}  // namespace

void attention(const Model& model, const Step& step, int64_t layer, const Buffers& at, Team& team) {
  Rotation(model, step, layer, at, team).run();
  if (step.longest == 1) Decode(model, step, layer, at, team).run();
  else Prefill(model, step, layer, at, team).run();
}

}  // namespace minillm
