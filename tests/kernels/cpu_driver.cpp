// Every variant's products over odd shapes, against arithmetic in double on codes made here. All
// memory is exactly as large as it must be, so that a sanitizer sees every step beyond it. Prints
// one line per variant, and the first differences; exit code 1 if there was one.
#include <cmath>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "export.h"
#include "products.h"

using namespace minillm;

MINILLM_API Weight* mm_pack_blocks(int32_t, int64_t, const uint8_t* const*, const int64_t*,
                                   const int64_t*, int64_t);
MINILLM_API Weight* mm_pack_groups(int32_t, int32_t, int64_t, const uint8_t* const*,
                                   const void* const*, const uint8_t* const*, const int64_t*,
                                   const int64_t*, int64_t, int64_t);
MINILLM_API Weight* mm_pack_floats(int32_t, int64_t, const uint8_t* const*, const int64_t*,
                                   const int64_t*, int64_t);
MINILLM_API void mm_free(Weight*);
MINILLM_API const char* mm_variant(int32_t);
MINILLM_API int32_t mm_use(const char*);
MINILLM_API void mm_linear(const Weight*, const float*, int8_t*, float*, int32_t*, int64_t, float*,
                           const float*);

static std::mt19937 rng(1);
static int whole(int least, int most) { return std::uniform_int_distribution<int>(least, most)(rng); }
static float real() { return std::normal_distribution<float>()(rng); }
static int failures = 0;

struct Matrix {
  Weight* packed;
  std::vector<double> values;  // (N, C)
};

static void append(std::vector<uint8_t>& to, const void* data, size_t bytes) {
  const auto* from = static_cast<const uint8_t*>(data);
  to.insert(to.end(), from, from + bytes);
}

static Matrix blocks(BlockKind kind, int64_t N, int64_t C) {
  Matrix m;
  std::vector<uint8_t> data;
  for (int64_t b = 0; b < N * C / 32; b++) {
    const float16 d = to_float16(0.01f * real()), low = to_float16(0.1f * real());
    const bool eight = kind == BlockKind::Q8_0;
    append(data, &d, 2);
    if (kind == BlockKind::Q4_1) append(data, &low, 2);
    const double offset = eight                     ? 0.0
                          : kind == BlockKind::Q4_1 ? double(to_float(low))
                                                    : -8.0 * to_float(d);
    int codes[32];
    for (int& code : codes) {
      code = eight ? whole(-128, 127) : whole(0, 15);
      m.values.push_back(code * double(to_float(d)) + offset);
    }
    for (int i = 0; i < (eight ? 32 : 16); i++) {
      data.push_back(uint8_t(eight ? codes[i] : codes[i] | codes[i + 16] << 4));
    }
  }
  data.shrink_to_fit();
  const uint8_t* at = data.data();
  m.packed = mm_pack_blocks(int32_t(kind), 1, &at, &N, nullptr, C);
  return m;
}

static Matrix groups(int bits, Numbers type, int64_t N, int64_t C, int64_t size) {
  Matrix m;
  std::vector<uint8_t> codes, scales, zeros;
  for (int64_t i = 0; i < N * C; i++) {
    if (i % size == 0) {
      const float16 narrow = to_float16(0.01f * real());
      const bfloat16 brain = to_bfloat16(0.01f * real());
      const float wide = 0.01f * real();
      if (type == Numbers::FLOAT16) append(scales, &narrow, 2);
      if (type == Numbers::BFLOAT16) append(scales, &brain, 2);
      if (type == Numbers::FLOAT32) append(scales, &wide, 4);
      zeros.push_back(uint8_t(whole(0, bits == 4 ? 15 : 255)));
    }
    float scale;
    float16 narrow;
    bfloat16 brain;
    const size_t g = zeros.size() - 1;
    std::memcpy(&narrow, scales.data() + 2 * g, 2);
    std::memcpy(&brain, scales.data() + 2 * g, 2);
    if (type == Numbers::FLOAT32) std::memcpy(&scale, scales.data() + 4 * g, 4);
    if (type != Numbers::FLOAT32) scale = type == Numbers::FLOAT16 ? to_float(narrow) : to_float(brain);
    const int code = whole(0, bits == 4 ? 15 : 255);
    if (bits == 8 || i % 2 == 0) codes.push_back(uint8_t(code));
    if (bits == 4 && i % 2 == 1) codes.back() = uint8_t(codes.back() | code << 4);
    m.values.push_back((code - int(zeros.back())) * double(scale));
  }
  const uint8_t* c = codes.data();
  const void* s = scales.data();
  const uint8_t* z = zeros.data();
  m.packed = mm_pack_groups(bits, int32_t(type), 1, &c, &s, &z, &N, nullptr, C, size);
  return m;
}

static void compare(const char* what, const Matrix& m, int64_t M) {
  const int64_t N = m.packed->rows, C = m.packed->cols, B = C / 32;
  std::vector<float> x(M * C), scales(M * B), y(M * N), bias(N);
  std::vector<int8_t> codes(M * C);
  std::vector<int32_t> sums(M * B);
  for (float& v : x) v = real();
  for (float& v : bias) v = real();
  mm_linear(m.packed, x.data(), codes.data(), scales.data(), sums.data(), M, y.data(), bias.data());
  for (int64_t t = 0; t < M; t++) {
    for (int64_t n = 0; n < N; n++) {
      double expected = bias[n], size = 1e-30;
      for (int64_t b = 0; b < B; b++) {
        float most = 0;
        for (int i = 0; i < 32; i++) most = std::fmax(most, std::fabs(x[t * C + 32 * b + i]));
        const float scale = most / 127;
        for (int i = 0; i < 32; i++) {
          const double code = std::nearbyint(x[t * C + 32 * b + i] / scale);
          const double term = code * scale * m.values[n * C + 32 * b + i];
          expected += term;
          size += std::fabs(term);
        }
      }
      const double error = std::fabs(y[t * N + n] - expected) / (size + std::fabs(bias[n]));
      if (!(error < 1e-5) && failures++ < 20) {
        std::printf("%s M=%d N=%d C=%d: y[%d,%d] is %g, not %g\n", what, int(M), int(N), int(C),
                    int(t), int(n), y[t * N + n], expected);
      }
    }
  }
}

static void check(const char* what, const Matrix& m) {
  const int64_t N = m.packed->rows, C = m.packed->cols;
  std::vector<float> row(C);
  for (int64_t n = 0; n < N; n++) {
    dequantize_row(*m.packed, n, row.data());
    for (int64_t c = 0; c < C; c++) {
      const double error = std::fabs(row[c] - m.values[n * C + c]);
      if (error > 1e-6 && failures++ < 20) std::printf("%s: row %d differs\n", what, int(n));
    }
  }
  for (int64_t M : {0, 1, 2, 3, 5, 8, 9, 33, 100}) compare(what, m, M);
  mm_free(m.packed);
}

int main() {
  for (int32_t i = 0; mm_variant(i); i++) {
    mm_use(mm_variant(i));
    for (int64_t N : {1, 7, 16, 33}) {
      for (int64_t C : {32, 96, 896}) {
        check("Q4_0", blocks(BlockKind::Q4_0, N, C));
        check("Q4_1", blocks(BlockKind::Q4_1, N, C));
        check("Q8_0", blocks(BlockKind::Q8_0, N, C));
        check("4 bits, float16", groups(4, Numbers::FLOAT16, N, C, C));
        check("8 bits, float32", groups(8, Numbers::FLOAT32, N, C, 32));
        check("8 bits, bfloat16", groups(8, Numbers::BFLOAT16, N, C, C));
      }
    }
    std::printf("%s: %s\n", variant_name(), failures ? "differs" : "as it should be");
  }
  return failures ? 1 : 0;
}
