// Attention of one query per head on codes, as floats.
//
// Codes are never turned back into keys. With key = code · scale + minimum, channel by channel,
//   q · key = (q · scale) · code + q · minimum,
// so that the scales of a block go into the query; and a value's scales into its weight.

// Scales, or minima, of a batch's values in group g of `groups`, 0 behind the last value.
static inline void read_scales(const uint16_t* scales, int64_t count, int64_t size, int64_t g,
                               int64_t groups, float* y) {
  int64_t i = 0;
  if (groups == 2) {  // 64 channels
    for (; i + WIDTH <= count; i += WIDTH) {
      const auto* pairs = reinterpret_cast<const bfloat16*>(scales + 2 * i);
      store(y + i, g ? load_odd(pairs) : load_even(pairs));
    }
  }
  for (; i < count; i++) y[i] = wide(scales[i * groups + g]);
  for (; i < size; i++) y[i] = 0.0f;
}

// The weights times the scales of group g, and what its minima add.
template <int N>
static inline void weigh_group(Batch& batch, int64_t g, int64_t groups, Weights& weights,
                               float* least) {
  float scale[BATCH], minimum[BATCH];
  read_scales(batch.scales, batch.count, batch.size, g, groups, scale);
  read_scales(batch.minima, batch.count, batch.size, g, groups, minimum);
  for (int h = 0; h < N; h++) {
    vec total = zero();
    for (int64_t i = 0; i < batch.size; i += WIDTH) {
      const vec weight = load(batch.weight[h] + i);
      store(weights[h] + i, mul(weight, load(scale + i)));
      total = fma(weight, load(minimum + i), total);
    }
    least[h] = sum(total);
  }
}

// Values that are codes: their scales go into the weights and their minima are summed apart. Two
// groups at a time where registers hold both: more sums that don't wait for each other.
template <typename Source, int N>
static void mix_codes(Batch& batch, const float* shrunk, float* mixed, int64_t channels,
                      int64_t D) {
  constexpr int64_t HALF = CHUNK / 2 * WIDTH;
  const int64_t groups = D / channels;
  float least[2][HEADS];
  if (channels == HALF && groups % 2 == 0) {
    for (int64_t g = 0; g < groups; g += 2) {
      weigh_group<N>(batch, g, groups, batch.group[0], least[0]);
      weigh_group<N>(batch, g + 1, groups, batch.group[1], least[1]);
      mix_values<Source, N, CHUNK, 2>(batch, batch.group, shrunk, least, mixed, g * HALF, D);
    }
    return;
  }
  for (int64_t g = 0; g < groups; g++) {
    weigh_group<N>(batch, g, groups, batch.group[0], least[0]);
    const int64_t d = g * channels;
    mix<Source, N>(batch, batch.group[0], shrunk, least, mixed, d, d + channels, D);
  }
}

// Scores of one block of a batch of codes, from key i on. Its keys have scales and minima (D,).
template <typename Source, int N>
static void score_block(Batch& batch, const float* q, int64_t D, const float* key_scales,
                        const float* key_minima, int64_t i) {
  float scaled[N * MAX_HEAD];
  vec start[N];  // q · minimum, as a vector that is summed up with the products
  for (int h = 0; h < N; h++) {
    vec constant = zero();
    for (int64_t d = 0; d < D; d += WIDTH) {  // D is a multiple of WIDTH here
      const vec x = load(q + h * D + d);
      store(scaled + h * D + d, mul(x, load(key_scales + d)));
      constant = fma(x, load(key_minima + d), constant);
    }
    start[h] = constant;
  }
  score<Source, N>(batch, scaled, start, D, i, i + BLOCK);
}

// The same against a batch of codes; scales and minima of keys: (blocks, D).
template <typename Source, int N>
static void attend_codes(Batch& batch, const float* q, int64_t first, int64_t D,
                         const float* key_scales, const float* key_minima, int64_t channels,
                         const Part& part) {
  float shrunk[N];
  for (int64_t i = 0; i < batch.size; i += BLOCK) {
    const int64_t block = i / BLOCK * D;
    score_block<Source, N>(batch, q + first * D, D, key_scales + block, key_minima + block, i);
  }
  weigh<N>(batch, first, part, shrunk);
  mix_codes<Source, N>(batch, shrunk, part.mixed + first * D, channels, D);
}

template <typename Source>
static void attend_code_batch(Batch& batch, const float* q, int64_t G, int64_t D,
                              int64_t channels, const Part& part) {
  float s[BATCH / BLOCK * MAX_HEAD], m[BATCH / BLOCK * MAX_HEAD];
  widen({batch.key_scales, Numbers::BFLOAT16}, batch.size / BLOCK * D, s);
  widen({batch.key_minima, Numbers::BFLOAT16}, batch.size / BLOCK * D, m);
  for (int64_t g = 0; g < G; g += HEADS) {
    switch (G - g < HEADS ? G - g : HEADS) {
      case 1: attend_codes<Source, 1>(batch, q, g, D, s, m, channels, part); break;
      case 2: attend_codes<Source, 2>(batch, q, g, D, s, m, channels, part); break;
      case 3: attend_codes<Source, THREE>(batch, q, g, D, s, m, channels, part); break;
      default: attend_codes<Source, HEADS>(batch, q, g, D, s, m, channels, part);
    }
  }
}
