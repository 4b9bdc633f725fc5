#include "troupe/ops/block_sparse.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "troupe/ops/grouped_gemm.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"

namespace troupe {
namespace {

using testing::Tensors;

// Two by three blocks, the middle column empty: (0, 0), (0, 2), (1, 2), and an entry to spare.
BlockStructure small(int64_t block, const at::TensorOptions& on = {}) {
  const at::Tensor offsets = at::tensor({0, 2, 3}, at::kInt).to(on.device());
  const at::Tensor columns = at::tensor({0, 2, 2, -1}, at::kInt).to(on.device());
  return block_structure(offsets, columns, {.rows = 2 * block, .cols = 3 * block, .block = block});
}

// S written out dense.
at::Tensor written_out(const at::Tensor& values, int64_t block) {
  at::Tensor s = at::zeros({2 * block, 3 * block}, values.options());
  const int64_t at_row[] = {0, 0, 1}, at_col[] = {0, 2, 2};
  for (int p = 0; p < 3; ++p) {
    s.narrow(0, at_row[p] * block, block).narrow(1, at_col[p] * block, block).copy_(values[p]);
  }
  return s;
}

bool near(const at::Tensor& got, const at::Tensor& want) {
  const bool half = got.scalar_type() != at::kFloat;
  return at::allclose(got.to(at::kFloat), want, half ? 1.6e-2 : 1e-5, half ? 2e-3 : 2e-4);
}

at::Tensor f32(const at::Tensor& x) {
  return x.to(at::kFloat);
}

TEST(BlockStructureOp, ListsTheBlocksByColumns) {
  const BlockStructure s = small(8);
  EXPECT_TRUE(s.col_offsets.equal(at::tensor({0, 1, 1, 3}, at::kInt)));
  EXPECT_TRUE(s.row_indices.narrow(0, 0, 3).equal(at::tensor({0, 0, 1}, at::kInt)));
  EXPECT_TRUE(s.block_order.narrow(0, 0, 3).equal(at::tensor({0, 1, 2}, at::kInt)));
}

TEST(BlockStructureOp, BlockDiagonalHasAnExpertsColumnsInItsRows) {
  // Experts of 1, 0 and 2 block rows, two block columns each; a fourth block row is nobody's.
  const BlockStructure s =
      block_diagonal(at::tensor({4, 4, 12}, at::kInt), {.block = 4, .rows = 4, .columns = 2});
  EXPECT_EQ(s.rows, 16);
  EXPECT_EQ(s.cols, 24);
  EXPECT_TRUE(s.row_offsets.equal(at::tensor({0, 2, 4, 6, 6}, at::kInt)));
  EXPECT_TRUE(s.col_indices.equal(at::tensor({0, 1, 4, 5, 4, 5, -1, -1}, at::kInt)));
  EXPECT_TRUE(s.col_offsets.equal(at::tensor({0, 1, 2, 2, 2, 4, 6}, at::kInt)));
  EXPECT_TRUE(s.row_indices.narrow(0, 0, 6).equal(at::tensor({0, 0, 1, 2, 1, 2}, at::kInt)));
  EXPECT_TRUE(s.block_order.narrow(0, 0, 6).equal(at::tensor({0, 1, 2, 4, 3, 5}, at::kInt)));
}

class BlockSparseOp : public testing::DeviceTest {};

TEST_P(BlockSparseOp, EqualsDenseProducts) {
  constexpr int64_t kB = 128;
  const BlockStructure s = small(kB, device());
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf}) {
    const auto random = [&](int64_t rows, int64_t cols) {
      return at::randn({rows, cols}, device()).to(type);
    };
    const at::Tensor values = at::randn({4, kB, kB}, device()).to(type);
    const at::Tensor dense = written_out(f32(values), kB);
    const at::Tensor a = random(2 * kB, 40), b = random(40, 3 * kB);
    const at::Tensor got = written_out(f32(sdd(a, b, s)), kB);
    const at::Tensor mask = written_out(at::ones({4, kB, kB}, device()), kB);
    EXPECT_TRUE(near(got.to(type), at::mm(f32(a), f32(b)) * mask)) << type;
    const at::Tensor x = random(3 * kB, 40), y = random(2 * kB, 40);
    EXPECT_TRUE(near(dsd(values, s, x), at::mm(dense, f32(x)))) << type;
    EXPECT_TRUE(near(dsd(values, s.t(), y), at::mm(dense.t(), f32(y)))) << type;
    EXPECT_TRUE(near(dds(y.t(), values, s), at::mm(f32(y.t()), dense))) << type;
    EXPECT_TRUE(near(dds(x.t(), values, s.t()), at::mm(f32(x.t()), dense.t()))) << type;
  }
}

TEST_P(BlockSparseOp, E16_ReadsTransposedViewsInPlaceAndCopiesOthers) {
  constexpr int64_t kB = 128;
  const BlockStructure s = small(kB, device());
  const at::Tensor a = at::randn({2 * kB, 40}, device()), b = at::randn({3 * kB, 40}, device());
  const at::Tensor want = sdd(a, b.t().contiguous(), s);
  EXPECT_TRUE(near(sdd(a, b.t(), s), want));
  EXPECT_TRUE(near(sdd(a.t().contiguous().t(), b.t(), s), want));
  const at::Tensor wide = at::zeros({2 * kB, 80}, device());
  const at::Tensor every_other = wide.slice(1, 0, 80, 2);
  every_other.copy_(a);
  EXPECT_TRUE(near(sdd(every_other, b.t(), s), want));
}

// The two products of an MoE layer of experts without a gate, block-sparse and grouped.
TEST_P(BlockSparseOp, X7_EqualsTheGroupedPath) {
  constexpr int64_t kB = 128;
  const BlockStructure s =
      block_diagonal(at::tensor({128, 128, 384}, at::kInt).to(device().device()),
                     {.block = kB, .rows = 3, .columns = 2});
  const at::Tensor offset = at::tensor({0, 128, 128, 384}, at::kInt).to(device().device());
  const at::Tensor x = at::randn({3 * kB, 64}, device()), w = at::randn({3, 256, 64}, device());
  const at::Tensor flat = w.view({3 * 256, 64});
  const at::Tensor hidden = sdd(x, flat.t(), s);
  const at::Tensor rows = hidden.view({3, 2, kB, kB}).transpose(1, 2).reshape({3 * kB, 256});
  EXPECT_TRUE(near(rows, grouped_gemm(x, w, offset)));
  EXPECT_TRUE(at::allclose(dsd(hidden, s, flat), grouped_gemm(rows, w, offset, WeightOrder::kInOut),
                           1e-5, 1e-2));
}

INSTANTIATE_TEST_SUITE_P(On, BlockSparseOp, testing::devices(), testing::device_name);

at::Tensor input(at::IntArrayRef sizes) {
  return at::randn(sizes, at::kDouble).requires_grad_();
}

TEST(BlockSparseGradient, AgreesWithTheNumericJacobian) {
  const BlockStructure s = small(2);
  // The spare entry of the values is in no product, and zero in sdd's.
  testing::expect_gradients([&](const Tensors& x) { return sdd(x[0], x[1], s); },
                            {input({4, 3}), input({3, 6})});
  testing::expect_gradients([&](const Tensors& x) { return sdd(x[0].t(), x[1].t(), s); },
                            {input({3, 4}), input({6, 3})});
  testing::expect_gradients([&](const Tensors& x) { return dsd(x[0], s, x[1]); },
                            {input({4, 2, 2}), input({6, 3})});
  testing::expect_gradients([&](const Tensors& x) { return dsd(x[0], s.t(), x[1].t()); },
                            {input({4, 2, 2}), input({3, 4})});
  testing::expect_gradients([&](const Tensors& x) { return dds(x[0], x[1], s); },
                            {input({3, 4}), input({4, 2, 2})});
  testing::expect_gradients([&](const Tensors& x) { return dds(x[0].t(), x[1], s.t()); },
                            {input({6, 3}), input({4, 2, 2})});
}

TEST(BlockSparseGradient, X8_FrozenPartsHaveNone) {
  const BlockStructure s = small(4);
  const at::Tensor values = at::randn({4, 4, 4}), b = at::randn({12, 5});
  const at::Tensor free = b.clone().requires_grad_();
  dsd(values, s, free).sum().backward();
  EXPECT_TRUE(free.grad().defined());
  EXPECT_FALSE(values.requires_grad());
  EXPECT_FALSE(dsd(values, s, b).requires_grad());
}

TEST(BlockSparseOp, E1_NoRowsAtAll) {
  const BlockStructure s = block_structure(at::zeros({1}, at::kInt), at::zeros({0}, at::kInt),
                                           {.rows = 0, .cols = 8, .block = 4});
  EXPECT_EQ(sdd(at::ones({0, 5}), at::ones({5, 8}), s).numel(), 0);
  EXPECT_EQ(dsd(at::ones({0, 4, 4}), s, at::ones({8, 3})).numel(), 0);
  EXPECT_TRUE(dsd(at::ones({0, 4, 4}), s.t(), at::ones({0, 3})).eq(0).all().item<bool>());
}

TEST(BlockSparseRefusal, NamesTheArgument) {
  const BlockStructure s = small(4);
  const at::Tensor a = at::ones({8, 5}), b = at::ones({5, 12}), values = at::ones({4, 4, 4});
  TROUPE_EXPECT_REFUSAL(sdd(b, b, s), "sdd: a");
  TROUPE_EXPECT_REFUSAL(sdd(a, a, s), "sdd: b");
  TROUPE_EXPECT_REFUSAL(sdd(a, b.to(at::kDouble), s), "sdd: b");
  TROUPE_EXPECT_REFUSAL(sdd(a, b, s.t()), "transposed");
  TROUPE_EXPECT_REFUSAL(dsd(values, s, a), "dsd: b");
  TROUPE_EXPECT_REFUSAL(dsd(values[0], s, b.t()), "block_sparse: values");
  TROUPE_EXPECT_REFUSAL(dds(a, values, s), "dds: a");
  TROUPE_EXPECT_REFUSAL(dds(a.t(), values.to(at::kHalf), s), "block_sparse: values");
  BlockStructure broken = s;
  broken.row_indices = s.row_indices.to(at::kLong);
  TROUPE_EXPECT_REFUSAL(dds(a.t(), values, broken), "block_sparse: row_indices");
  broken = s;
  broken.col_offsets = s.row_offsets;
  TROUPE_EXPECT_REFUSAL(dds(a.t(), values, broken), "block_sparse: col_offsets");
  const at::Tensor offsets = at::zeros({3}, at::kInt), columns = at::zeros({2}, at::kInt);
  const BlockSize size{.rows = 8, .cols = 12, .block = 4};
  TROUPE_EXPECT_REFUSAL(block_structure(offsets.narrow(0, 0, 2), columns, size),
                        "block_structure: row_offsets");
  TROUPE_EXPECT_REFUSAL(block_structure(offsets, columns.to(at::kLong), size),
                        "block_structure: col_indices");
}

}  // namespace
}  // namespace troupe
