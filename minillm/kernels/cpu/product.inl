// From panels to matrices: which panels a range of rows covers, how many tokens go through the
// inner product at once, and where results are written.

// Tokens m to m + T - 1, and of a panel's 16 rows those in [first, last).
static inline void write_panel(const float* out, int64_t row, int64_t T, int64_t m, int64_t first,
                               int64_t last, float* y, int64_t ldy, const float* bias) {
  const int64_t from = row < first ? first : row, to = row + PANEL > last ? last : row + PANEL;
  for (int64_t t = 0; t < T; t++) {
    for (int64_t n = from; n < to; n++) {
      y[(m + t) * ldy + n] = out[t * PANEL + n - row] + (bias ? bias[n] : 0.0f);
    }
  }
}

template <int BITS>
static void panel_tile(int64_t T, const Weight& w, const uint8_t* panel, const Activations& x,
                       int64_t m, float* out) {
  switch (T) {
    case 1: return panel_product<BITS, 1>(w, panel, x, m, out);
    case 2: return panel_product<BITS, 2>(w, panel, x, m, out);
    case 3: return panel_product<BITS, 3>(w, panel, x, m, out);
    default: return panel_product<BITS, 4>(w, panel, x, m, out);
  }
}

template <int BITS>
static void coded_product(const Weight& w, const Activations& x, int64_t M, int64_t first,
                          int64_t last, float* y, int64_t ldy, const float* bias) {
  float out[4 * PANEL];
  for (int64_t row = first / PANEL * PANEL; row < last; row += PANEL) {
    const uint8_t* panel = w.data + row / PANEL * w.panel_bytes;
    for (int64_t m = 0; m < M; m += 4) {
      const int64_t T = M - m < 4 ? M - m : 4;
      panel_tile<BITS>(T, w, panel, x, m, out);
      write_panel(out, row, T, m, first, last, y, ldy, bias);
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
