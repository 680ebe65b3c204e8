// From panels to matrices: which panels a range of rows covers, how many tokens go through the
// inner product at once, and where results are written.

// As many tokens at once as there are, TILE at most.
template <int BITS, int T = TILE>
static void panel_tile(int64_t count, const Weight& w, const uint8_t* panel, const Activations& x,
                       float* out) {
  if (count == T) return panel_product<BITS, T>(w, panel, x, out);
  if constexpr (T > 1) panel_tile<BITS, T - 1>(count, w, panel, x, out);
}

static inline Activations tokens_from(const Activations& x, int64_t m, int64_t cols) {
  const int64_t block = m * (cols / BLOCK);
  return {x.values, x.codes + m * cols, x.scales + block, x.sums + block};
}

template <int BITS>
static void coded_product(const Weight& w, const Activations& x, int64_t M, int64_t first,
                          int64_t last, float* y, int64_t ldy, const float* bias) {
  if (M > 2 * TILE) return many_product<BITS>(w, x, M, first, last, y, ldy, bias);
  float out[TILE * PANEL];
  for (int64_t row = first / PANEL * PANEL; row < last; row += PANEL) {
    const uint8_t* panel = w.data + row / PANEL * w.panel_bytes;
    for (int64_t m = 0; m < M; m += TILE) {
      const int64_t T = M - m < TILE ? M - m : TILE;
      panel_tile<BITS>(T, w, panel, tokens_from(x, m, w.cols), out);
      put_panel(out, row, T, first, last, y + m * ldy, ldy, bias);
    }
  }
}

// A row of floating-point weights times one token's values.
template <typename F>
static inline float dot(const F* w, const float* x, int64_t cols) {
  vec a = zero(), b = zero();
  int64_t c = 0;
  for (; c + 2 * WIDTH <= cols; c += 2 * WIDTH) {
    a = fma(load(w + c), load(x + c), a);
    b = fma(load(w + c + WIDTH), load(x + c + WIDTH), b);
  }
  float rest = 0.0f;
  for (; c < cols; c++) rest += to_float(w[c]) * x[c];
  return sum(add(a, b)) + rest;
}

template <typename F>
static void float_product(const Weight& w, const Activations& x, int64_t M, int64_t first,
                          int64_t last, float* y, int64_t ldy, const float* bias) {
  for (int64_t n = first; n < last; n++) {
    const F* row = static_cast<const F*>(w.row[n]);
    for (int64_t m = 0; m < M; m++) {
      y[m * ldy + n] = dot(row, x.values + m * w.cols, w.cols) + (bias ? bias[n] : 0.0f);
    }
  }
}

static void product(const Weight& w, const Activations& x, int64_t M, int64_t first, int64_t last,
                    float* y, int64_t ldy, const float* bias) {
  switch (w.numbers) {
    case Numbers::CODES4: return coded_product<4>(w, x, M, first, last, y, ldy, bias);
    case Numbers::CODES8: return coded_product<8>(w, x, M, first, last, y, ldy, bias);
    case Numbers::FLOAT32: return float_product<float>(w, x, M, first, last, y, ldy, bias);
    case Numbers::BFLOAT16: return float_product<bfloat16>(w, x, M, first, last, y, ldy, bias);
    case Numbers::FLOAT16: return float_product<float16>(w, x, M, first, last, y, ldy, bias);
  }
}
