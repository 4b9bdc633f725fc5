// The products with gathered rows: `up` and `hidden`.
#include "troupe/kernels/moe_sm90/launch.cuh"
#include "troupe/kernels/moe_sm90/moe_sm90.h"
#include "troupe/kernels/moe_sm90/rows_epilogue.cuh"
#include "troupe/kernels/moe_sm90/rows_gemm.cuh"

namespace troupe {
namespace {

using namespace sm90;

struct Up {
  static constexpr bool kGather = true;
  static constexpr WeightBoxes kBoxes = WeightBoxes::kGateAndUp;
  static constexpr int kLead = 2;
  static constexpr int kProducerRegisters = 72;
  using Epilogue = Swiglu;
};

RowsGemm gathered(const PlanRef& plan, const MatRef& source, int n_tiles) {
  return {static_cast<const uint8_t*>(source.data),
          static_cast<uint32_t>(source.cols * 2),
          plan.row_src,
          plan.expert_offset,
          static_cast<int>(plan.experts),
          static_cast<int>(source.cols / kTileK),
          n_tiles};
}

}  // namespace

void moe_up_sm90_cuda(const MoeUpSm90& a, cudaStream_t stream) {
  validate(a);
  const int64_t units = a.a.cols;
  const auto n_tiles = static_cast<int>((units + 127) / 128);
  const Swiglu::Params swiglu{static_cast<Bits16*>(a.h.data), static_cast<Bits16*>(a.a.data),
                              static_cast<uint32_t>(units), a.score, a.plan.row_slot};
  const int64_t tiles = a.plan.rows == 0 ? 0 : (a.plan.rows / kClusterM + a.plan.experts) * n_tiles;
  launch_persistent(rows_gemm_kernel<Up>, tiles, stream, gathered(a.plan, a.x, n_tiles), swiglu,
                    CUtensorMap{}, weight_map(a.w1.data, a.plan.experts, 2, units, a.x.cols));
}

}  // namespace troupe
