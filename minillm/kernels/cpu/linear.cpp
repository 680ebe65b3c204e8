// A linear layer on its own, for Python: activations rounded and multiplied in one parallel region.
// A whole step does the same in step.cpp without leaving its region between layers.
#include "export.h"
#include "products.h"
#include "team.h"

#if !defined(_WIN32)
#include <unistd.h>
#endif

namespace minillm {

#if defined(_OPENMP) && !defined(_WIN32)
static const pid_t loaded_by = getpid();
int usual_threads() { return getpid() == loaded_by ? omp_get_max_threads() : 1; }
#elif defined(_OPENMP)
int usual_threads() { return omp_get_max_threads(); }
#else
int usual_threads() { return 1; }
#endif

MINILLM_API void mm_quantize(const float* values, int8_t* codes, float* scales, int32_t* sums,
                             int64_t first, int64_t last) {
  quantize({values, codes, scales, sums}, first, last);
}

MINILLM_API void mm_product(const Weight* w, const float* values, int8_t* codes, float* scales,
                            int32_t* sums, int64_t M, int64_t first, int64_t last, float* y,
                            int64_t ldy, const float* bias) {
  product(*w, {values, codes, scales, sums}, M, first, last, y, ldy, bias);
}

// y = x · wᵀ + bias: values (M, C), y (M, N). codes, scales and sums are room for the rounded x.
MINILLM_API void mm_linear(const Weight* w, const float* values, int8_t* codes, float* scales,
                           int32_t* sums, int64_t M, float* y, const float* bias) {
  const Activations x = {values, codes, scales, sums};
  const int64_t blocks = w->coded() ? M * (w->cols / BLOCK) : 0;
  run_team(usual_threads(), nullptr, [&](Team& team) {
    Share mine = team.share(blocks);
    quantize(x, mine.first, mine.last);
    team.finish(0);
    mine = team.share(w->rows, PANEL);
    product(*w, x, M, mine.first, mine.last, y, w->rows, bias);
  });
}

}  // namespace minillm
