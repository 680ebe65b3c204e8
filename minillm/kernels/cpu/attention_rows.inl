// Keys and values as the cache stores them: reading rows of numbers and of codes, and rounding a
// full block to codes.

// A source reads WIDTH numbers of a row from channel d on. Rows lie row_bytes(D) apart. WHOLE: D is
// a multiple of WIDTH, so that no vector reaches past a row's end.
template <typename T, bool EVEN>
struct Exact {
  static constexpr bool WHOLE = EVEN;
  static constexpr int64_t row_bytes(int64_t D) { return D * int64_t(sizeof(T)); }
  static vec read(const uint8_t* row, int64_t d) {
    return load(reinterpret_cast<const T*>(row) + d);
  }
  static vec read_some(const uint8_t* row, int64_t d, int64_t count) {
    return load_some(reinterpret_cast<const T*>(row) + d, count);
  }
};

struct Codes8 {
  static constexpr bool WHOLE = true;
  static constexpr int64_t row_bytes(int64_t D) { return D; }
  static vec read(const uint8_t* row, int64_t d) { return load_bytes(row + d); }
};

struct Codes4 {  // two in a byte, the first in its low half
  static constexpr bool WHOLE = true;
  static constexpr int64_t row_bytes(int64_t D) { return D / 2; }
  static vec read(const uint8_t* row, int64_t d) { return load_nibbles(row + d / 2); }
};

static inline float wide(uint16_t bits) { return to_float(bfloat16{bits}); }

// The least bfloat16 that is not below x.
static inline uint16_t rounded_up(float x) {
  const uint16_t nearest = to_bfloat16(x).bits;
  const float value = wide(nearest);
  if (!(value < x)) return nearest;
  return value < 0 ? nearest - 1 : nearest + 1;  // the next bit pattern
}

// Scale and minimum that place 2^bits values from the least to the largest of `count` numbers that
// lie `stride` apart; then their codes. NaN becomes NaN in the minimum, and codes of 0.
static inline void round_group(const float* x, int64_t count, int64_t stride, int64_t bits,
                               uint16_t* scale, uint16_t* minimum, uint8_t* codes) {
  const float top = bits == 8 ? 255.0f : 15.0f;
  float low = x[0], high = x[0];
  for (int64_t i = 0; i < count; i++) {
    const float value = x[i * stride];
    low = value != value || value < low ? value : low;
    high = value != value || value > high ? value : high;
    if (value != value) break;
  }
  *minimum = rounded_up(-low) ^ 0x8000;
  const float least = wide(*minimum);
  *scale = rounded_up((high - least) / top);
  const float step = wide(*scale);
  for (int64_t i = 0; i < count; i++) {
    float code = (x[i * stride] - least) / step;  // NaN for 0 / 0: all values are the minimum
    code = code > 0.0f ? (code < top ? code : top) : 0.0f;
    codes[i * stride] = uint8_t(rintf(code));
  }
}

static void fill_block(const CacheForm& form, bool keys, const Store& store, int64_t block,
                       int64_t D) {
  float x[BLOCK * MAX_HEAD];
  uint8_t codes[BLOCK * MAX_HEAD];
  widen({store.exact, form.numbers}, BLOCK * D, x);
  const int64_t channels = keys ? form.key_channels : form.value_channels;
  const int64_t tokens = channels ? BLOCK : 1, groups = channels ? D / channels : D;
  uint16_t* scales = store.scales + block * tokens * groups;
  uint16_t* minima = store.minima + block * tokens * groups;
  for (int64_t t = 0; t < tokens; t++) {
    for (int64_t g = 0; g < groups; g++) {
      const int64_t at = t * D + g * (channels ? channels : 1), n = t * groups + g;
      const int64_t count = channels ? channels : BLOCK, stride = channels ? 1 : D;
      round_group(x + at, count, stride, form.bits, scales + n, minima + n, codes + at);
    }
  }
  uint8_t* out = store.codes + block * BLOCK * D * form.bits / 8;
  for (int64_t i = 0; i < BLOCK * D * form.bits / 8; i++) {
    out[i] = form.bits == 8 ? codes[i] : uint8_t(codes[2 * i] | codes[2 * i + 1] << 4);
  }
}

// What the codes of a row stand for, or its exact numbers, as float32.
static void read_row(const HeadCache& head, bool keys, int64_t place, int64_t D, float* out) {
  const CacheForm& form = *head.form;
  const Store& store = keys ? head.keys : head.values;
  if (place >= head.full) {
    const int64_t size = form.numbers == Numbers::FLOAT32 ? 4 : 2;
    return widen({store.exact + (place - head.full) * D * size, form.numbers}, D, out);
  }
  const int64_t channels = keys ? form.key_channels : form.value_channels;
  const int64_t groups = channels ? D / channels : D, row = channels ? place : place / BLOCK;
  const uint8_t* codes = store.codes + place * D * form.bits / 8;
  const int64_t width = channels ? channels : 1;
  for (int64_t g = 0; g < groups; g++) {
    const float scale = wide(store.scales[row * groups + g]);
    const float least = wide(store.minima[row * groups + g]);
    for (int64_t d = g * width; d < (g + 1) * width; d++) {
      const int code = form.bits == 8 ? codes[d] : codes[d / 2] >> (d % 2 * 4) & 15;
      out[d] = float(code) * scale + least;
    }
  }
}
