// Vectors of 8 floats with AVX2, FMA and F16C. simd_portable.inl says what each function means.

constexpr int WIDTH = 8;
typedef __m256 vec;

static inline vec set1(float x) { return _mm256_set1_ps(x); }
static inline vec zero() { return _mm256_setzero_ps(); }

static inline vec load(const float* p) { return _mm256_loadu_ps(p); }
static inline vec load(const float16* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
static inline vec load(const bfloat16* p) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
static inline void store(float* p, vec a) { _mm256_storeu_ps(p, a); }
static inline void store(float16* p, vec a) {
  const __m128i bits = _mm256_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), bits);
}
static inline void store(bfloat16* p, vec a) {
  const __m256i bits = _mm256_castps_si256(a);
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  const __m256i up = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));  // NaN stays one
  const __m256 nan = _mm256_cmp_ps(a, a, _CMP_UNORD_Q);
  const __m256 kept = _mm256_blendv_ps(_mm256_castsi256_ps(up), _mm256_castsi256_ps(quiet), nan);
  const __m256i high = _mm256_srli_epi32(_mm256_castps_si256(kept), 16);
  const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
}

static inline vec add(vec a, vec b) { return _mm256_add_ps(a, b); }
static inline vec sub(vec a, vec b) { return _mm256_sub_ps(a, b); }
static inline vec mul(vec a, vec b) { return _mm256_mul_ps(a, b); }
static inline vec divide(vec a, vec b) { return _mm256_div_ps(a, b); }
static inline vec fma(vec a, vec b, vec c) { return _mm256_fmadd_ps(a, b, c); }
static inline vec maximum(vec a, vec b) { return _mm256_max_ps(a, b); }
static inline float sum(vec a) {
  __m128 x = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_add_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_add_ss(x, _mm_movehdup_ps(x)));
}
static inline float highest(vec a) {
  __m128 x = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  x = _mm_max_ps(x, _mm_movehl_ps(x, x));
  return _mm_cvtss_f32(_mm_max_ss(x, _mm_movehdup_ps(x)));
}

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
  const __m256i power = _mm256_slli_epi32(_mm256_castps_si256(shifted), 23);  // 2^k, less its bias
  const vec scaled =
      _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), power));
  const vec vanishes = _mm256_cmp_ps(x, set1(-87.3f), _CMP_LT_OQ);
  const vec kept = _mm256_andnot_ps(vanishes, scaled);
  return _mm256_blendv_ps(kept, x, _mm256_cmp_ps(x, x, _CMP_UNORD_Q));
}

static inline vec load_bytes(const uint8_t* p) {
  const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
}
static inline vec load_nibbles(const uint8_t* p) {
  int32_t four;
  std::memcpy(&four, p, 4);
  // Each byte to 64 bits of its own, its high half then to the upper 32 of them.
  const __m256i x = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
  const __m256i both = _mm256_or_si256(x, _mm256_slli_epi64(x, 28));
  return _mm256_cvtepi32_ps(_mm256_and_si256(both, _mm256_set1_epi32(15)));
}
static inline vec load_even(const bfloat16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(pairs, 16));
}
static inline vec load_odd(const bfloat16* p) {
  const __m256i pairs = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return _mm256_castsi256_ps(_mm256_and_si256(pairs, _mm256_set1_epi32(int(0xffff0000))));
}
static inline vec fold(const vec* x) {
  return _mm256_hadd_ps(_mm256_hadd_ps(x[0], x[1]), _mm256_hadd_ps(x[2], x[3]));
}
static inline vec sums(const vec* x) {
  return add(_mm256_permute2f128_ps(x[0], x[1], 0x20), _mm256_permute2f128_ps(x[0], x[1], 0x31));
}
