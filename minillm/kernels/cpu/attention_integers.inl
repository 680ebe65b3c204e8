// Attention on codes in whole numbers, with the dot products of AVX-512 VNNI: four codes (0 to 255)
// times four bytes with a sign, summed up, in each 32 bits of a vector.
//
// What codes are multiplied by, a query times the keys' scales or weights times the values' scales,
// is rounded to 16 bits, which are two such bytes: x ≈ unit · (256 · high + low), where the largest
// |x| of a batch is 32,639 units. Each x is then off by 1/65,278 of the largest one, X, or less:
//   a score by 255 · D · X / 65,278 at most, for D = 64 a quarter of X;
//   a batch's sum of values by 255 · 128 · X / 65,278, half of X.
// A code itself is off by half a scale, which already moves these by X/2 in one channel, or for one
// token, alone. Source of the scales' way into the query: see attention_codes.inl.

constexpr int64_t ROW = 64;         // channels whose codes are one vector
constexpr float LARGEST = 32639.0f;  // 256 · 127 + 127
constexpr int TOGETHER = 3;          // heads whose sums fit into the registers

typedef __m512i ints;

// total += codes · x. GCC gets the instruction itself: from the function it makes two copies of
// each sum, as vectors of two types, and then half of the sums live in memory.
static inline void dot(ints& total, ints codes, ints x) {
#if defined(__GNUC__)
  __asm__("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(codes), "v"(x));
#else
  total = _mm512_dpbusd_epi32(total, codes, x);
#endif
}

// The same with four bytes of x, for each 32 bits of the codes.
static inline void dot(ints& total, ints codes, const int8_t* x) {
#if defined(__GNUC__)
  using Four = const int8_t[4];
  __asm__("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(total) : "v"(codes), "m"(*(Four*)x));
#else
  int32_t four;
  std::memcpy(&four, x, 4);
  total = _mm512_dpbusd_epi32(total, codes, _mm512_set1_epi32(four));
#endif
}

static inline ints codes_of(Codes8, const uint8_t* row, int64_t d) {
  return _mm512_loadu_si512(row + d);
}
static inline ints codes_of(Codes4, const uint8_t* row, int64_t d) {
  const auto* pairs = reinterpret_cast<const __m256i*>(row + d / 2);
  const ints x = _mm512_cvtepu8_epi16(_mm256_loadu_si256(pairs));
  return _mm512_and_si512(_mm512_or_si512(x, _mm512_slli_epi16(x, 4)), _mm512_set1_epi8(15));
}

// The larger sizes. What is no number is left out: `constant` and `least` keep it.
static inline vec larger(vec most, vec x) { return _mm512_range_ps(most, x, 0xb); }

// 64 numbers in units as bytes, high and low: bytes 4·i … 4·i + 3 are of numbers i, i + 32, i + 16
// and i + 48 of x. Adding 1.5 · 2²³ rounds a float to a whole number, its lowest bits are that
// number's; 128 more make the second byte the high one, and the first the low one less 128.
struct Split {
  ints high, low;
};
static inline Split split(const vec* x, vec units) {
  ints n[4];
  for (int j = 0; j < 4; j++) n[j] = _mm512_castps_si512(fma(x[j], units, set1(12582912.0f + 128)));
  const ints a = _mm512_mask_blend_epi16(0xaaaaaaaa, n[0], _mm512_slli_epi32(n[1], 16));
  const ints b = _mm512_mask_blend_epi16(0xaaaaaaaa, n[2], _mm512_slli_epi32(n[3], 16));
  constexpr int SELECT = 0xca;  // of bits: where the first is set the second, else the third
  const ints first = _mm512_set1_epi16(0x00ff);
  const ints high = _mm512_ternarylogic_epi32(first, _mm512_srli_epi16(a, 8), b, SELECT);
  const ints low = _mm512_ternarylogic_epi32(first, a, _mm512_slli_epi16(b, 8), SELECT);
  return {high, _mm512_xor_si512(low, _mm512_set1_epi8(-128))};
}

#include "attention_integer_scores.inl"
#include "attention_integer_values.inl"

// N heads of a group, from head `first` of the part on. F: rows of 64 channels, D = 64·F.
template <typename Source, int N, int F>
static void attend_integers(Batch& batch, const float* q, int64_t first, const Part& part) {
  constexpr int64_t D = F * ROW;
  float shrunk[N];
  score_integers<Source, N, F>(batch, q + first * D);
  weigh<N>(batch, first, part, shrunk);
  mix_integers<Source, N, F>(batch, shrunk, part.mixed + first * D);
}

template <typename Source, int F>
static void attend_integer_heads(Batch& batch, const float* q, int64_t G, const Part& part) {
  for (int64_t g = 0, n; g < G; g += n) {
    n = G - g == TOGETHER + 1 ? 2 : least_of(G - g, TOGETHER);
    switch (n) {
      case 1: attend_integers<Source, 1, F>(batch, q, g, part); break;
      case 2: attend_integers<Source, 2, F>(batch, q, g, part); break;
      default: attend_integers<Source, TOGETHER, F>(batch, q, g, part);
    }
  }
}

// Whether a batch of codes at `place` has the form for this: whole blocks, 32 channels of a value
// that share a scale.
static inline bool in_integers(int64_t place, int64_t channels, int64_t D) {
  return place % BLOCK == 0 && channels == BLOCK && (D == ROW || D == 2 * ROW);
}

template <typename Source>
static void attend_integer_batch(Batch& batch, const float* q, int64_t G, int64_t D,
                                 const Part& part) {
  if (D == ROW) attend_integer_heads<Source, 1>(batch, q, G, part);
  else attend_integer_heads<Source, 2>(batch, q, G, part);
}
