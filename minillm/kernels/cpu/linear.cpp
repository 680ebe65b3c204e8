// A linear layer on its own, for Python: activations rounded and multiplied in one parallel region.
// A whole step does the same in step.cpp without leaving its region between layers.
#include "export.h"
#include "products.h"

#ifdef _OPENMP
#include <omp.h>
#endif

namespace minillm {

MINILLM_API void mm_quantize(const float* values, int8_t* codes, float* scales, int32_t* sums,
                             int64_t first, int64_t last) {
  quantize({values, codes, scales, sums}, first, last);
}

MINILLM_API void mm_product(const Weight* w, const float* values, int8_t* codes, float* scales,
                            int32_t* sums, int64_t M, int64_t first, int64_t last, float* y,
                            int64_t ldy, const float* bias) {
  product(*w, {values, codes, scales, sums}, M, first, last, y, ldy, bias);
}

// Share `i` of `shares` of the whole numbers below n, in steps of `unit`: where it begins.
static int64_t share(int64_t n, int64_t unit, int64_t i, int64_t shares) {
  const int64_t at = (n + unit - 1) / unit * i / shares * unit;
  return at < n ? at : n;
}

// y = x · wᵀ + bias: values (M, C), y (M, N). codes, scales and sums are room for the rounded x.
MINILLM_API void mm_linear(const Weight* w, const float* values, int8_t* codes, float* scales,
                           int32_t* sums, int64_t M, float* y, const float* bias) {
  const Activations x = {values, codes, scales, sums};
  const int64_t blocks = w->coded() ? M * (w->cols / BLOCK) : 0;
#pragma omp parallel
  {
    int64_t thread = 0, threads = 1;
#ifdef _OPENMP
    thread = omp_get_thread_num();
    threads = omp_get_num_threads();
#endif
    quantize(x, share(blocks, 1, thread, threads), share(blocks, 1, thread + 1, threads));
#pragma omp barrier
    product(*w, x, M, share(w->rows, PANEL, thread, threads),
            share(w->rows, PANEL, thread + 1, threads), y, w->rows, bias);
  }
}

}  // namespace minillm
