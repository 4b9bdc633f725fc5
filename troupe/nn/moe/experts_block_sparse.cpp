// Experts as products with one block-diagonal matrix (MegaBlocks): the rows of all experts times
// the columns of all experts, of which only an expert's own rows and columns meet. Blocks of H are
// [block row, block column, B, B], so that an expert's gates and its ups are whole blocks.
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/searchsorted.h>

#include "troupe/core/check.h"
#include "troupe/nn/moe/experts.h"
#include "troupe/nn/moe/ffn_units.h"
#include "troupe/nn/parts/recompute.h"
#include "troupe/ops/block_sparse.h"
#include "troupe/ops/combine.h"
#include "troupe/ops/group_bias.h"
#include "troupe/ops/permute.h"

namespace troupe {
namespace {

constexpr int64_t kB = kExpertBlock;

// Whole blocks of rows: the plan's bound may end within one, the last segment does not.
Plan in_blocks(const Plan& plan) {
  const int64_t rows = plan.row_src.size(0) / kB * kB;
  Plan out = plan;
  out.row_src = plan.row_src.narrow(0, 0, rows);
  out.row_slot = plan.row_slot.narrow(0, 0, rows);
  return out;
}

// b1 [E, G F] for each block row [block rows, G F / B, 1, B]; zero past the last segment. A product
// with ones and zeros is exact, and its gradient adds in a fixed order.
at::Tensor bias_of_blocks(const at::Tensor& b1, const at::Tensor& bins, int64_t block_rows) {
  const at::Tensor row = at::arange(block_rows, bins.options()) * kB;
  const at::Tensor expert = at::searchsorted(bins, row, /*out_int32=*/true, /*right=*/true);
  const at::Tensor is_of = expert.unsqueeze(1).eq(at::arange(bins.size(0), bins.options()));
  return at::mm(is_of.to(b1.scalar_type()), b1).view({block_rows, -1, 1, kB});
}

}  // namespace

at::Tensor block_sparse_ffn(const ExpertRows& given, const ExpertWeights& w, const FfnOptions& o,
                            Recompute again) {
  const int64_t E = w.w2.size(0), D = w.w2.size(1), F = w.w2.size(2), GF = w.w1.size(1);
  TROUPE_CHECK(F % kB == 0, "block_sparse experts: hidden must be a multiple of", kB, "; it is", F);
  const Plan plan = in_blocks(given.plan);
  const at::Tensor bins = plan.expert_offset.slice(0, 1).contiguous();
  if (bins.is_cpu()) {  // On a device nobody waits to see it.
    TROUPE_CHECK(!bins.remainder(kB).any().item<bool>(), "block_sparse experts: each segment of",
                 "the plan must be a multiple of", kB, "rows (row_alignment)");
  }
  const int64_t rows = plan.row_src.size(0), n = rows / kB;
  const BlockStructure hidden = block_diagonal(bins, {.block = kB, .rows = n, .columns = GF / kB});
  const BlockStructure units = block_diagonal(bins, {.block = kB, .rows = n, .columns = F / kB});

  const at::Tensor x_RD = permute(given.source_SD, plan);
  at::Tensor h = sdd(x_RD, w.w1.reshape({E * GF, D}).t(), hidden).view({n, GF / kB, kB, kB});
  if (w.b1) h = h + bias_of_blocks(*w.b1, bins, n);
  // [D, E F] is no matrix with strides over [E, D, F]: W2 is copied to [E F, D].
  const auto down = [units, o, E, F, D, gated = GF != F](const TensorList& in) {
    const at::Tensor u = ffn_units(in[0], gated, o).reshape({-1, kB, kB});
    return dsd(u, units, in[1].transpose(1, 2).reshape({E * F, D}));
  };
  const bool twice = again == Recompute::kAct;
  at::Tensor y_RD = twice ? recomputed({h, w.w2}, {}, down) : down({h, w.w2});
  if (w.b2) y_RD = group_bias(y_RD, *w.b2, plan.expert_offset);
  return combine(y_RD, plan, given.scores_SK);
}

}  // namespace troupe
