// The inner product with AVX-512 and VNNI. panel_portable.inl has the meaning, pack.cpp the order.
//
// A panel's 16 rows are the 16 lanes of one vector, 4 bytes of a row in each. `dpbusd` multiplies
// these, unsigned, with the activations' 4 signed bytes, the same for all lanes, and adds the four
// products to a lane's 32-bit sum. Signed codes of 8 bits are made unsigned by adding 128, and
// 128 · Σ xcode is taken off first.

// Tokens at once, as registers allow: straight from packed weights, and from unpacked ones.
constexpr int TILE = 8, TOKENS = 12;
using PanelCode = uint8_t;

static inline float quantize_block(const float* x, int8_t* codes, int32_t* sum) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i largest = _mm512_max_epi32(_mm512_and_si512(_mm512_castps_si512(a), magnitude),
                                           _mm512_and_si512(_mm512_castps_si512(b), magnitude));
  const float scale = from_bits(uint32_t(_mm512_reduce_max_epi32(largest))) / 127.0f;
  const __m512 most = _mm512_set1_ps(127.0f), least = _mm512_set1_ps(-127.0f);
  __m512 u = _mm512_div_ps(a, _mm512_set1_ps(scale)), v = _mm512_div_ps(b, _mm512_set1_ps(scale));
  u = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(u, u, _CMP_ORD_Q), u);  // 0/0 and the like: 0
  v = _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(v, v, _CMP_ORD_Q), v);
  const __m512i i = _mm512_cvtps_epi32(_mm512_max_ps(least, _mm512_min_ps(most, u)));
  const __m512i j = _mm512_cvtps_epi32(_mm512_max_ps(least, _mm512_min_ps(most, v)));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes), _mm512_cvtepi32_epi8(i));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(codes + 16), _mm512_cvtepi32_epi8(j));
  *sum = _mm512_reduce_add_epi32(_mm512_add_epi32(i, j));
  return scale;
}

// Scales and minima of a group's 16 rows, out of its head.
static inline void read_head(const Weight& w, const uint8_t* head, vec* scale, vec* minimum) {
  const uint8_t* offsets = head + PANEL * (w.wide_scales ? 4 : 2);
  *scale = w.wide_scales ? load(reinterpret_cast<const float*>(head))
                         : load(reinterpret_cast<const float16*>(head));
  if (w.offset == Offset::MINIMA) {
    *minimum = load(reinterpret_cast<const float16*>(offsets));
    return;
  }
  __m512i zeros = _mm512_set1_epi32(w.fixed_zero);
  if (w.offset == Offset::ZEROS) {
    const __m128i own = _mm_loadu_si128(reinterpret_cast<const __m128i*>(offsets));
    zeros = _mm512_add_epi32(zeros, _mm512_cvtepu8_epi32(own));
  }
  *minimum = mul(*scale, sub(zero(), _mm512_cvtepi32_ps(zeros)));
}

static inline __m512i repeat4(const int8_t* x) {
  int32_t word;
  std::memcpy(&word, x, 4);
  return _mm512_set1_epi32(word);
}

// Adds Σ code · xcode over a block, 16 rows in the lanes, for T tokens, codes `stride` apart.
template <int BITS, int T>
static inline void block_sums(const uint8_t* block, const int8_t* x, int64_t stride,
                              __m512i* sums) {
  const __m512i low = _mm512_set1_epi8(15), sign = _mm512_set1_epi8(-128);
  MINILLM_UNROLL
  for (int q = 0; q < BITS; q++) {
    const __m512i codes = _mm512_loadu_si512(block + 64 * q);
    if (BITS == 4) {
      const __m512i first = _mm512_and_si512(codes, low);
      const __m512i second = _mm512_and_si512(_mm512_srli_epi16(codes, 4), low);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        const int8_t* at = x + t * stride + 4 * q;
        sums[t] = _mm512_dpbusd_epi32(sums[t], first, repeat4(at));
        sums[t] = _mm512_dpbusd_epi32(sums[t], second, repeat4(at + 16));
      }
    } else {
      const __m512i raised = _mm512_xor_si512(codes, sign);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        sums[t] = _mm512_dpbusd_epi32(sums[t], raised, repeat4(x + t * stride + 4 * q));
      }
    }
  }
}

template <int BITS, int T>
static void panel_product(const Weight& w, const uint8_t* panel, const Activations& x,
                          float* out) {
  const int64_t blocks = w.cols / BLOCK;
  vec result[T];
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) result[t] = zero();
  int64_t b = 0;
  for (int64_t g = 0; g < w.groups; g++) {
    vec scale, minimum;
    read_head(w, panel, &scale, &minimum);
    const uint8_t* block = panel + w.head_bytes;
    panel += w.group_bytes;
    for (; block < panel; block += PANEL * BLOCK * BITS / 8, b++) {
      __m512i sums[T];
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        sums[t] = _mm512_set1_epi32(BITS == 8 ? -128 * x.sums[t * blocks + b] : 0);
      }
      block_sums<BITS, T>(block, x.codes + b * BLOCK, w.cols, sums);
      MINILLM_UNROLL
      for (int t = 0; t < T; t++) {
        const float s = x.scales[t * blocks + b], total = s * float(x.sums[t * blocks + b]);
        const vec product = fma(minimum, set1(total), result[t]);
        result[t] = fma(mul(scale, set1(s)), _mm512_cvtepi32_ps(sums[t]), product);
      }
    }
  }
  MINILLM_UNROLL
  for (int t = 0; t < T; t++) store(out + t * PANEL, result[t]);
}
