// What the stages of attention share within one layer and one thread: where queries, keys, values
// and the heads of the cache are, and how a new key or value gets into the cache.
#pragma once

#include <cstring>

#include "step_attention.h"

namespace minillm {

class LayerView {
 public:
  LayerView(const Model& model, const Step& step, int64_t l, const Buffers& at, Team& team)
      : model(model), step(step), layer(model.layers[l]), cache(step.caches[l]),
        form(*step.form), at(at), team(team), f(*at.functions), G(model.H / model.K),
        D(model.D), K(model.K) {}

 protected:
  float* query(int64_t n) const { return at.qkv + n * at.qkv_width; }
  float* key(int64_t n, int64_t k) const { return query(n) + model.H * D + k * D; }
  float* value(int64_t n, int64_t k) const { return key(n, k) + K * D; }

  int64_t bytes() const { return form.numbers == Numbers::FLOAT32 ? 4 : 2; }

  Store store_of(const Store& all, int64_t index, int64_t channels) const {
    const int64_t scales = cache.blocks * (channels ? BLOCK * (D / channels) : D);
    return {all.exact + index * cache.places * D * bytes(),
            all.codes + index * cache.blocks * BLOCK * D * form.bits / 8,
            all.scales + index * scales, all.minima + index * scales};
  }

  // Head k of row b; `full` says what is stored as codes once this step is through.
  HeadCache head(int64_t b, int64_t k) const {
    const int64_t index = b * K + k, count = step.starts[b + 1] - step.starts[b];
    return {&form, store_of(cache.keys, index, form.key_channels),
            store_of(cache.values, index, form.value_channels),
            form.bits ? (step.before[b] + count) / BLOCK * BLOCK : 0};
  }

  int64_t place(int64_t position) const {
    if (position < cache.sinks) return position;
    return cache.sinks + (position - cache.sinks) % cache.ring;
  }

  // Puts a key or value to its place; a block that is full then becomes codes.
  void write(const Store& store, bool keys, const float* x, int64_t position) {
    if (!form.bits) {
      f.narrow(x, D, form.numbers, store.exact + place(position) * D * bytes());
      return;
    }
    f.narrow(x, D, form.numbers, store.exact + position % BLOCK * D * bytes());
    if (position % BLOCK == BLOCK - 1) {
      f.fill_block(form, keys, store, position / BLOCK, D);
      std::memset(store.exact, 0, size_t(BLOCK * D * bytes()));
    }
  }

  // How many keys the query at this position sees.
  int64_t visible(int64_t position) const {
    const int64_t oldest = first_near(position);
    return position + 1 - oldest + least(layer.sight.sinks, oldest);
  }

  int64_t first_near(int64_t position) const {
    return layer.sight.window ? most(position + 1 - layer.sight.window, 0) : 0;
  }

  const Model& model;
  const Step& step;
  const Layer& layer;
  const LayerCache& cache;
  const CacheForm& form;
  const Buffers& at;
  Team& team;
  const AttentionFunctions& f;
  const int64_t G, D, K;
};

}  // namespace minillm
