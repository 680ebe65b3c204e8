// Vectors of 16 floats with AVX-512. simd_portable.inl says what each function means.

#define MINILLM_INTEGERS  // attention_integers.inl is for these instructions

constexpr int WIDTH = 16;
typedef __m512 vec;

static inline vec set1(float x) { return _mm512_set1_ps(x); }
static inline vec zero() { return _mm512_setzero_ps(); }

static inline vec load(const float* p) { return _mm512_loadu_ps(p); }
static inline vec load(const float16* p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
static inline vec load(const bfloat16* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}
static inline void store(float* p, vec a) { _mm512_storeu_ps(p, a); }
static inline void store(float16* p, vec a) {
  const __m256i bits = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), bits);
}
static inline void store(bfloat16* p, vec a) {
  const __m512i bits = _mm512_castps_si512(a);
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  const __m512i up = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  const __mmask16 nan = _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);  // which stays one
  const __m512i kept = _mm512_mask_or_epi32(up, nan, bits, _mm512_set1_epi32(0x400000));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p),
                      _mm512_cvtepi32_epi16(_mm512_srli_epi32(kept, 16)));
}

static inline vec add(vec a, vec b) { return _mm512_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
static inline vec divide(vec a, vec b) { return _mm512_div_ps(a, b); }
static inline vec fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }
static inline vec maximum(vec a, vec b) { return _mm512_max_ps(a, b); }
static inline float sum(vec a) { return _mm512_reduce_add_ps(a); }
static inline float highest(vec a) { return _mm512_reduce_max_ps(a); }

static inline vec exp(vec x) {
  const vec shifted = fma(x, set1(1.44269504f), set1(12582912.0f));
  const vec k = sub(shifted, set1(12582912.0f));
  const vec r = fma(k, set1(2.12194440e-4f), fma(k, set1(-0.693359375f), x));
  vec p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  const vec y = add(fma(mul(p, r), r, r), set1(1.0f));
  const __mmask16 stays = _mm512_cmp_ps_mask(x, set1(-87.3f), _CMP_NLT_UQ);  // NaN too
  return _mm512_maskz_scalef_ps(stays, y, k);
}

static inline vec load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(bytes));
}
static inline vec load_nibbles(const uint8_t* p) {
  // Each byte to 64 bits of its own, its high half then to the upper 32 of them.
  const __m512i x = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
  const __m512i both = _mm512_or_si512(x, _mm512_slli_epi64(x, 28));
  return _mm512_cvtepi32_ps(_mm512_and_si512(both, _mm512_set1_epi32(15)));
}
static inline vec load_even(const bfloat16* p) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
}
static inline vec load_odd(const bfloat16* p) {
  const __m512i high = _mm512_set1_epi32(int(0xffff0000));
  return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(p), high));
}
static inline vec fold(const vec* x) {
  // Within each 128 bits: a, b, c, d, each of one vector.
  const vec ab = add(_mm512_unpacklo_ps(x[0], x[1]), _mm512_unpackhi_ps(x[0], x[1]));
  const vec cd = add(_mm512_unpacklo_ps(x[2], x[3]), _mm512_unpackhi_ps(x[2], x[3]));
  return add(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
}
static inline vec sums(const vec* x) {
  // The same with quarters of 128 bits in place of single numbers.
  const vec a = x[0], b = x[1], c = x[2], d = x[3];
  const vec ab = add(_mm512_shuffle_f32x4(a, b, 0x44), _mm512_shuffle_f32x4(a, b, 0xee));
  const vec cd = add(_mm512_shuffle_f32x4(c, d, 0x44), _mm512_shuffle_f32x4(c, d, 0xee));
  return add(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}
