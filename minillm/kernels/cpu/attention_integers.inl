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
  __asm__("vpdpbusd %2, %1, %0" : "+v"(total) : "v"(codes), "vm"(x));
#else
  total = _mm512_dpbusd_epi32(total, codes, x);
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

// The larger sizes. As whole numbers they have the same order, and what is no number is above all.
static inline ints larger(ints most, vec x) {
  const ints size = _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffffff));
  return _mm512_max_epu32(most, size);
}
static inline float largest(ints most) { return from_bits(_mm512_reduce_max_epu32(most)); }

// 64 numbers in units, as high and low bytes. Numbers stay together by four (a quad): the quad of
// numbers 16·j + 4·l … 16·j + 4·l + 3 is number 4·l + j of the 32-bit numbers.
struct Split {
  ints high, low;
};
static inline Split split(const vec* x, vec units) {
  ints n[4];
  for (int j = 0; j < 4; j++) n[j] = _mm512_cvtps_epi32(mul(x[j], units));
  const ints a = _mm512_packs_epi32(n[0], n[1]), b = _mm512_packs_epi32(n[2], n[3]);
  const ints half = _mm512_set1_epi16(128);
  return {_mm512_packs_epi16(_mm512_srai_epi16(_mm512_add_epi16(a, half), 8),
                             _mm512_srai_epi16(_mm512_add_epi16(b, half), 8)),
          _mm512_packs_epi16(_mm512_srai_epi16(_mm512_slli_epi16(a, 8), 8),
                             _mm512_srai_epi16(_mm512_slli_epi16(b, 8), 8))};
}

#include "attention_integer_scores.inl"
#include "attention_integer_values.inl"

// N heads of a group, from head `first` of the part on. F: rows of 64 channels, D = 64·F.
template <typename Source, int N, int F>
static void attend_integers(Batch& batch, const float* q, int64_t first, const Part& part) {
  constexpr int64_t D = F * ROW;
  float shrunk[N];
  Ahead<Source> ahead(batch, D);
  score_integers<Source, N, F>(batch, q + first * D, ahead);
  weigh<N>(batch, first, part, shrunk, ahead);
  mix_integers<Source, N, F>(batch, shrunk, part.mixed + first * D, ahead);
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
