// Attention of one layer: rotation, writing to the cache, and how heads and keys are dealt out.
#include "step_attention.h"

#include <cmath>
#include <cstring>

#include "dispatch.h"

namespace minillm {

namespace {

class LayerPass {
 public:
  LayerPass(const Model& model, const Step& step, int64_t l, const Buffers& at, Team& team)
      : model(model), step(step), layer(model.layers[l]), cache(step.caches[l]),
        form(*step.form), at(at), team(team), f(*current().attention), G(model.H / model.K),
        D(model.D), K(model.K) {}

  void run() {
    if (model.whole_norm && layer.q_norm.data) norm_all_heads();
    turn();
    if (step.longest == 1) {
      decode();
      merge();
    } else {
      unpack();
      prefill();
    }
  }

 private:
  float* query(int64_t n) const { return at.qkv + n * at.qkv_width; }
  float* key(int64_t n, int64_t k) const { return query(n) + model.H * D + k * D; }
  float* value(int64_t n, int64_t k) const { return key(n, k) + K * D; }

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

  // ---- One token per row.

  // How many keys the query at this position sees.
  int64_t visible(int64_t position) const {
    const int64_t oldest = first_near(position);
    return position + 1 - oldest + least(layer.sight.sinks, oldest);
  }

  int64_t first_near(int64_t position) const {
    return layer.sight.window ? most(position + 1 - layer.sight.window, 0) : 0;
  }

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

  // ---- Several tokens per row: keys and values as float32 first, then tiles.

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

}  // namespace

void attention(const Model& model, const Step& step, int64_t layer, const Buffers& at, Team& team) {
  LayerPass(model, step, layer, at, team).run();
}

}  // namespace minillm
