// Norms, rotation, gating and conversions: what happens to a token's values one by one.

// WIDTH numbers, or the `count` that are left of a row, with zeros behind them.
template <typename T>
static inline vec load_some(const T* x, int64_t count) {
  if (count >= WIDTH) return load(x);
  float padded[WIDTH] = {};
  for (int64_t i = 0; i < count; i++) padded[i] = to_float(x[i]);
  return load(padded);
}

template <typename T>
static inline void store_some(T* y, vec x, int64_t count) {
  if (count >= WIDTH) return store(y, x);
  T padded[WIDTH];
  store(padded, x);
  for (int64_t i = 0; i < count; i++) y[i] = padded[i];
}

template <typename T>
static inline void scale_by(const float* x, float scale, const T* weight, float offset,
                            int64_t size, float* y) {
  for (int64_t i = 0; i < size; i += WIDTH) {
    const vec w = add(load_some(weight + i, size - i), set1(offset));
    store_some(y + i, mul(mul(load_some(x + i, size - i), set1(scale)), w), size - i);
  }
}

static inline float sum_of_squares(const float* x, int64_t size) {
  vec a = zero(), b = zero();
  int64_t i = 0;
  for (; i + 2 * WIDTH <= size; i += 2 * WIDTH) {
    const vec u = load(x + i), v = load(x + i + WIDTH);
    a = fma(u, u, a);
    b = fma(v, v, b);
  }
  for (; i < size; i += WIDTH) {
    const vec u = load_some(x + i, size - i);
    a = fma(u, u, a);
  }
  return sum(add(a, b));
}

static void rms_norm(const float* x, Vector weight, float offset, float eps, int64_t size,
                     float* y) {
  const float mean = sum_of_squares(x, size) / float(size);
  const float scale = 1.0f / sqrtf(mean + eps);
  switch (weight.numbers) {
    case Numbers::BFLOAT16:
      return scale_by(x, scale, static_cast<const bfloat16*>(weight.data), offset, size, y);
    case Numbers::FLOAT16:
      return scale_by(x, scale, static_cast<const float16*>(weight.data), offset, size, y);
    default:
      return scale_by(x, scale, static_cast<const float*>(weight.data), offset, size, y);
  }
}

static void rope(float* x, const float* cos, const float* sin, int64_t pairs) {
  for (int64_t i = 0; i < pairs; i += WIDTH) {
    const int64_t n = pairs - i;
    const vec a = load_some(x + i, n), b = load_some(x + i + pairs, n);
    const vec c = load_some(cos + i, n), s = load_some(sin + i, n);
    store_some(x + i, sub(mul(a, c), mul(b, s)), n);
    store_some(x + i + pairs, fma(a, s, mul(b, c)), n);
  }
}

// The smaller one; NaN where x is NaN.
static inline vec at_most(vec x, float most) {
  return sub(zero(), maximum(set1(-most), sub(zero(), x)));
}

// z / (1 + e^-z)
static inline vec silu(vec z) {
  return divide(z, add(set1(1.0f), exp(at_most(sub(zero(), z), 88.0f))));
}

// z/2 · (1 + tanh(u)) = z / (1 + e^-2u), u = sqrt(2/π) · (z + 0.044715 z³)
static inline vec gelu_tanh(vec z) {
  const vec cube = mul(mul(z, z), z);
  const vec u = mul(set1(0.7978845608f), fma(set1(0.044715f), cube, z));
  return divide(z, add(set1(1.0f), exp(at_most(mul(set1(-2.0f), u), 88.0f))));
}

static void gate(bool gelu, const float* gate, const float* up, int64_t size, float* y) {
  for (int64_t i = 0; i < size; i += WIDTH) {
    const vec z = load_some(gate + i, size - i);
    const vec opened = gelu ? gelu_tanh(z) : silu(z);
    store_some(y + i, mul(opened, load_some(up + i, size - i)), size - i);
  }
}

template <typename From, typename To>
static inline void convert(const From* x, int64_t size, To* y) {
  for (int64_t i = 0; i < size; i += WIDTH) store_some(y + i, load_some(x + i, size - i), size - i);
}

static void widen(Vector x, int64_t size, float* y) {
  switch (x.numbers) {
    case Numbers::BFLOAT16: return convert(static_cast<const bfloat16*>(x.data), size, y);
    case Numbers::FLOAT16: return convert(static_cast<const float16*>(x.data), size, y);
    default: return convert(static_cast<const float*>(x.data), size, y);
  }
}

static void narrow(const float* x, int64_t size, Numbers numbers, void* y) {
  switch (numbers) {
    case Numbers::BFLOAT16: return convert(x, size, static_cast<bfloat16*>(y));
    case Numbers::FLOAT16: return convert(x, size, static_cast<float16*>(y));
    default: return convert(x, size, static_cast<float*>(y));
  }
}
