// The inner product with AVX2. panel_portable.inl has the meaning, pack.cpp the order of codes.
//
// A panel's 16 rows are two vectors of 8 lanes, 4 bytes of a row in each lane. The activations' 4
// bytes are repeated in all lanes, so that one `maddubs` multiplies 32 pairs and adds neighbours.
// 4-bit codes: 8 such sums of two products stay below 8 · 2 · 15 · 127 = 30,480, within 16 bits.
// 8-bit codes are signed, but maddubs takes one side unsigned: |w| · (x with w's sign).

// Tokens at once, as registers allow: straight from packed weights, and from unpacked ones.
constexpr int TILE = 4, TOKENS = 6;
using PanelCode = uint8_t;

static inline float quantize_block(const float* x, int8_t* codes, int32_t* sum) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  __m256 v[4];
  for (int i = 0; i < 4; i++) {
    v[i] = _mm256_loadu_ps(x + 8 * i);
    largest = _mm256_max_epi32(largest, _mm256_and_si256(_mm256_castps_si256(v[i]), magnitude));
  }
  const __m128i upper = _mm256_extracti128_si256(largest, 1);
  __m128i most = _mm_max_epi32(_mm256_castsi256_si128(largest), upper);
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0x4e));
  most = _mm_max_epi32(most, _mm_shuffle_epi32(most, 0xb1));
  const float scale = _mm_cvtss_f32(_mm_castsi128_ps(most)) / 127.0f;
  __m256i steps[4], total = _mm256_setzero_si256();
  for (int i = 0; i < 4; i++) {
    __m256 step = _mm256_div_ps(v[i], _mm256_set1_ps(scale));
    step = _mm256_and_ps(step, _mm256_cmp_ps(step, step, _CMP_ORD_Q));  // 0/0 and the like: 0
    step = _mm256_max_ps(_mm256_set1_ps(-127.0f), _mm256_min_ps(_mm256_set1_ps(127.0f), step));
    steps[i] = _mm256_cvtps_epi32(step);  // to nearest, halves to even
    total = _mm256_add_epi32(total, steps[i]);
  }
  const __m256i pairs = _mm256_packs_epi16(_mm256_packs_epi32(steps[0], steps[1]),
                                           _mm256_packs_epi32(steps[2], steps[3]));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(codes),
                      _mm256_permutevar8x32_epi32(pairs, order));
  __m128i s = _mm_add_epi32(_mm256_castsi256_si128(total), _mm256_extracti128_si256(total, 1));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
  s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
  *sum = _mm_cvtsi128_si32(s);
  return scale;
}

// Scales and minima of 8 of a group's rows (half 0 or 1), out of its head.
static inline void read_head(const Weight& w, const uint8_t* head, int half, vec* scale,
                             vec* minimum) {
  const uint8_t* offsets = head + PANEL * (w.wide_scales ? 4 : 2);
  *scale = w.wide_scales ? load(reinterpret_cast<const float*>(head) + 8 * half)
                         : load(reinterpret_cast<const float16*>(head) + 8 * half);
  if (w.offset == Offset::MINIMA) {
    *minimum = load(reinterpret_cast<const float16*>(offsets) + 8 * half);
    return;
  }
  __m256i zeros = _mm256_set1_epi32(w.fixed_zero);
  if (w.offset == Offset::ZEROS) {
    const __m128i own = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(offsets + 8 * half));
    zeros = _mm256_add_epi32(zeros, _mm256_cvtepu8_epi32(own));
  }
  *minimum = mul(*scale, sub(zero(), _mm256_cvtepi32_ps(zeros)));
}

static inline __m256i repeat4(const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, 4);
  return _mm256_set1_epi32(word);
}

// Σ code · xcode over a block, 8 rows in the lanes, for T tokens whose codes are `stride` apart.
template <int BITS, int T>
static inline void block_sums(const uint8_t* block, const int8_t* x, int64_t stride,
                              __m256i* sums) {
  const __m256i ones = _mm256_set1_epi16(1), low = _mm256_set1_epi8(15);
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) sums[t] = _mm256_setzero_si256();
  if (BITS == 4) {
    MINILLM_UNROLL
    for (int q = 0; q < 4; q++) {
      const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 64 * q));
      const __m256i first = _mm256_and_si256(both, low);
      const __m256i second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        const int8_t* at = x + t * stride + 4 * q;
        const __m256i a = _mm256_maddubs_epi16(first, repeat4(at));
        const __m256i b = _mm256_maddubs_epi16(second, repeat4(at + 16));
        sums[t] = _mm256_add_epi16(sums[t], _mm256_add_epi16(a, b));
      }
    }
    MINILLM_UNROLL
    for (int t = 0; t < T; t++) sums[t] = _mm256_madd_epi16(sums[t], ones);
    return;
  }
  MINILLM_UNROLL
  for (int q = 0; q < 8; q++) {
    const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(block + 64 * q));
    const __m256i size = _mm256_abs_epi8(codes);
    MINILLM_UNROLL
    for (int t = 0; t < T; t++) {
      const __m256i signed_x = _mm256_sign_epi8(repeat4(x + t * stride + 4 * q), codes);
      const __m256i products = _mm256_madd_epi16(_mm256_maddubs_epi16(size, signed_x), ones);
      sums[t] = _mm256_add_epi32(sums[t], products);
    }
  }
}

template <int BITS, int T>
static void panel_product(const Weight& w, const uint8_t* panel, const Activations& x,
                          float* out) {
  const int64_t blocks = w.cols / BLOCK;
  vec result[T][2];
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) result[t][0] = result[t][1] = zero();
  int64_t b = 0;
  for (int64_t g = 0; g < w.groups; g++) {
    vec scale[2], minimum[2];
    MINILLM_UNROLL
    for (int h = 0; h < 2; h++) read_head(w, panel, h, &scale[h], &minimum[h]);
    const uint8_t* block = panel + w.head_bytes;
    panel += w.group_bytes;
    for (; block < panel; block += PANEL * BLOCK * BITS / 8, b++) {
      MINILLM_UNROLL
      for (int h = 0; h < 2; h++) {
        __m256i sums[T];
        block_sums<BITS, T>(block + 32 * h, x.codes + b * BLOCK, w.cols, sums);
        MINILLM_UNROLL
        for (int t = 0; t < T; t++) {
          const float s = x.scales[t * blocks + b], total = s * float(x.sums[t * blocks + b]);
          const vec product = fma(minimum[h], set1(total), result[t][h]);
          result[t][h] = fma(mul(scale[h], set1(s)), _mm256_cvtepi32_ps(sums[t]), product);
        }
      }
    }
  }
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) {
    store(out + t * PANEL, result[t][0]);
    store(out + t * PANEL + 8, result[t][1]);
  }
}
