// A forward pass from token ids to hidden states: its stages, and how each is dealt out to the
// threads. What happens to one piece is in product.inl and attention_*.inl.
#include "step.h"

#include <cstring>
#include <memory>
#include <new>

#include "export.h"
#include "step_attention.h"
#include "step_buffers.h"
#include "team.h"

namespace minillm {

namespace {

class Pass {
 public:
  Pass(const Model& model, const Step& step, const Buffers& buffers, Team& team)
      : model(model), step(step), at(buffers), team(team), f(*buffers.functions) {}

  void run() {
    embed();
    for (int64_t l = 0; l < model.num_layers; l++) {
      const Layer& layer = model.layers[l];
      const Vector& before = l ? model.layers[l - 1].mlp_out : Vector{};
      for (int64_t t = 0; t < step.N; t += CHUNK_TOKENS) {
        const int64_t M = least(CHUNK_TOKENS, step.N - t);
        norm(t, M, l > 0, before, layer.attention_in, coded(layer.q, layer.k, layer.v));
        float* out = at.qkv + t * at.qkv_width;
        multiply(layer.q, at.input, M, out, at.qkv_width);
        multiply(layer.k, at.input, M, out + model.H * model.D, at.qkv_width);
        multiply(layer.v, at.input, M, out + (model.H + model.K) * model.D, at.qkv_width);
        team.finish(QKV);
      }
      attention(model, step, l, at, team);
      for (int64_t t = 0; t < step.N; t += CHUNK_TOKENS) {
        const int64_t M = least(CHUNK_TOKENS, step.N - t);
        output(layer, t, M);
        norm(t, M, true, layer.attention_out, layer.mlp_in, coded(layer.gate, layer.up, layer.up));
        mlp(layer, t, M);
      }
    }
    const Layer& last = model.layers[model.num_layers - 1];
    const Share mine = team.share(step.N);
    for (int64_t n = mine.first; n < mine.last; n++) {
      float* x = step.hidden + n * model.C;
      add(n, last.mlp_out);
      f.rms_norm(x, model.norm, model.norm_offset, model.eps, model.C, x);
    }
    team.finish(NORM);
  }

 private:
  static bool coded(const Linear& a, const Linear& b, const Linear& c) {
    return a.weight->coded() || b.weight->coded() || c.weight->coded();
  }

  void embed() {
    const Share mine = team.share(step.N);
    for (int64_t n = mine.first; n < mine.last; n++) {
      float* x = step.hidden + n * model.C;
      if (model.embedding) {
        dequantize_row(*model.embedding, step.ids[n], x);
      } else {
        const uint8_t* row = model.embedding_blocks + step.ids[n] * model.embedding_row_bytes;
        dequantize_blocks(model.embedding_kind, row, model.C, x);
      }
      if (model.embedding_scale != 1.0f) {
        for (int64_t c = 0; c < model.C; c++) x[c] *= model.embedding_scale;
      }
    }
    team.finish(EMBED);
  }

  // Token n's residual stream takes up what the last product gave.
  void add(int64_t n, const Vector& weight) {
    float *x = step.hidden + n * model.C, *y = at.sum + n * model.C;
    if (weight.data) f.rms_norm(y, weight, model.norm_offset, model.eps, model.C, y);
    for (int64_t c = 0; c < model.C; c++) x[c] += y[c];
  }

  // M tokens from t on: x + out(y), and in(x) of it as the next product's input, rounded or not.
  void norm(int64_t t, int64_t M, bool adds, const Vector& out, const Vector& in, bool rounds) {
    const Share mine = team.share(M);
    for (int64_t m = mine.first; m < mine.last; m++) {
      if (adds) add(t + m, out);
      const float* x = step.hidden + (t + m) * model.C;
      float* y = at.normed + m * model.C;
      if (in.data) f.rms_norm(x, in, model.norm_offset, model.eps, model.C, y);
      else std::memcpy(y, x, size_t(model.C) * sizeof(float));
    }
    at.input.values = at.normed;
    if (rounds) {
      quantize(at.input, mine.first * (model.C / BLOCK), mine.last * (model.C / BLOCK));
    }
    team.finish(NORM);
  }

  // This thread's share of the outputs of a linear layer.
  void multiply(const Linear& linear, const Activations& x, int64_t M, float* y, int64_t ldy) {
    const Share mine = team.share(linear.weight->rows, PANEL);
    multiply(linear, x, M, mine, y, ldy);
  }

  void multiply(const Linear& linear, const Activations& x, int64_t M, Share rows, float* y,
                int64_t ldy) {
    if (rows.first == rows.last) return;
    const float* bias = static_cast<const float*>(linear.bias.data);
    if (bias && linear.bias.numbers != Numbers::FLOAT32) {
      float* wide = at.biases + team.thread * at.widest;
      f.widen(linear.bias, linear.weight->rows, wide);
      bias = wide;
    }
    product(*linear.weight, x, M, rows.first, rows.last, y, ldy, bias);
  }

  void output(const Layer& layer, int64_t t, int64_t M) {
    const int64_t width = model.H * model.D;
    at.input.values = at.mixed + t * width;
    if (layer.o.weight->coded()) {
      const Share blocks = team.share(M * (width / BLOCK));
      quantize(at.input, blocks.first, blocks.last);
      team.finish(MERGE);
    }
    multiply(layer.o, at.input, M, at.sum + t * model.C, model.C);
    team.finish(OUT);
  }

  // Each thread gates, and rounds, what it has multiplied itself: no need to meet in between. With
  // many tokens it does so for a few outputs at a time, which are still in its cache then.
  void mlp(const Layer& layer, int64_t t, int64_t M) {
    const int64_t F = model.F, blocks = F / BLOCK;
    const Share mine = team.share(F, BLOCK);
    const int64_t few = M > 16 ? 2 * BLOCK : F;
    const Activations hidden = {at.gated, at.gated_codes, at.gated_scales, at.gated_sums};
    for (int64_t n = mine.first; n < mine.last; n += few) {
      const Share rows = {n, least(n + few, mine.last)};
      multiply(layer.gate, at.input, M, rows, at.gated, F);
      multiply(layer.up, at.input, M, rows, at.up, F);
      for (int64_t m = 0; m < M; m++) {
        float* y = at.gated + m * F + n;
        f.gate(model.gelu, y, at.up + m * F + n, rows.last - n, y);
        if (!layer.down.weight->coded()) continue;
        quantize(hidden, m * blocks + n / BLOCK, m * blocks + rows.last / BLOCK);
      }
    }
    team.finish(GATE_UP);
    multiply(layer.down, hidden, M, at.sum + t * model.C, model.C);
    team.finish(DOWN);
  }

  const Model& model;
  const Step& step;
  Buffers at;  // a copy: its pointers may be moved
  Team& team;
  const AttentionFunctions& f;
};

}  // namespace

// For a test: that Python's structs are as large as these.
MINILLM_API void mm_step_sizes(int64_t* sizes) {
  const int64_t found[] = {sizeof(Layer), sizeof(Model), sizeof(Step), sizeof(LayerCache)};
  std::memcpy(sizes, found, sizeof found);
}

// 0, or 1 where there was no memory; nothing has happened then.
MINILLM_API int32_t mm_step(const Model* model, const Step* step) {
  const Memory memory(*model, *step);
  if (!memory.buffers.all) return 1;
  run_team(step->threads, step->seconds, [&](Team& team) {
    Pass(*model, *step, memory.buffers, team).run();
  });
  return 0;
}

// scores (M, V) = hidden (M, C) · headᵀ.
MINILLM_API int32_t mm_head(const Weight* head, const float* hidden, int64_t M, float* scores,
                            int64_t threads, double* seconds) {
  const int64_t blocks = head->coded() ? M * (head->cols / BLOCK) : 0;
  const std::unique_ptr<int8_t[]> codes(new (std::nothrow) int8_t[size_t(blocks) * BLOCK]);
  const std::unique_ptr<float[]> scales(new (std::nothrow) float[size_t(blocks)]);
  const std::unique_ptr<int32_t[]> sums(new (std::nothrow) int32_t[size_t(blocks)]);
  if (!codes || !scales || !sums) return 1;
  const Activations x = {hidden, codes.get(), scales.get(), sums.get()};
  run_team(threads, seconds, [&](Team& team) {
    Share mine = team.share(blocks);
    quantize(x, mine.first, mine.last);
    team.finish(0);
    mine = team.share(head->rows, PANEL);
    product(*head, x, M, mine.first, mine.last, scores, head->rows, nullptr);
    team.finish(1);
  });
  return 0;
}

}  // namespace minillm
