// In place of the CUDA files, in a build whose architectures lack 90a: nothing may choose these
// products there (runs_sm90_code of kernels/device/build_code.h).
#include "troupe/core/check.h"
#include "troupe/kernels/moe_sm90/moe_fp8_sm90.h"
#include "troupe/kernels/moe_sm90/moe_sm90.h"

namespace troupe {

#define TROUPE_ABSENT(name, Args)                                                      \
  void name##_cuda(const Args&, cudaStream_t) {                                        \
    TROUPE_CHECK(false, #name,                                                         \
                 "is for sm_90a, which CMAKE_CUDA_ARCHITECTURES of this build lacks"); \
  }

TROUPE_ABSENT(moe_up_sm90, MoeUpSm90)
TROUPE_ABSENT(moe_down_sm90, MoeDownSm90)
TROUPE_ABSENT(moe_hidden_grad_sm90, MoeHiddenGradSm90)
TROUPE_ABSENT(moe_rows_grad_sm90, MoeRowsGradSm90)
TROUPE_ABSENT(moe_down_grad_sm90, MoeDownGradSm90)
TROUPE_ABSENT(moe_up_grad_sm90, MoeUpGradSm90)
TROUPE_ABSENT(rows_product_sm90, RowsProductSm90)
TROUPE_ABSENT(weight_product_sm90, WeightProductSm90)
TROUPE_ABSENT(moe_up_fp8_sm90, MoeUpFp8Sm90)
TROUPE_ABSENT(moe_down_fp8_sm90, MoeDownFp8Sm90)
TROUPE_ABSENT(moe_hidden_grad_fp8_sm90, MoeHiddenGradFp8Sm90)
TROUPE_ABSENT(moe_hidden_tiles_fp8_sm90, MoeHiddenTilesFp8Sm90)
TROUPE_ABSENT(moe_rows_grad_fp8_sm90, MoeRowsGradFp8Sm90)
TROUPE_ABSENT(moe_weight_grad_fp8_sm90, MoeWeightGradFp8Sm90)

#undef TROUPE_ABSENT

}  // namespace troupe
