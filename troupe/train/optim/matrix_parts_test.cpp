// Matrices in parts of rows and columns on ranks that are threads, beside the whole ones.
#include "troupe/train/optim/matrix_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <atomic>

#include "troupe/testing/torch/ranks.h"
#include "troupe/train/optim/optimizer.h"

namespace troupe {
namespace {

struct Whole {
  at::Tensor x;  // [n, R, C]
  int64_t dim;
};

TEST(MatrixParts, FunctionsOfWholeMatricesAreThoseOfOneRank) {
  at::manual_seed(4);
  for (const int ranks : {1, 2, 3, 4}) {
    const std::vector<Whole> all = {{at::randn({1, 12, 5}), 1},
                                    {at::randn({7, 6, 24}), 2},
                                    {at::randn({0, 12, 4}), 1},
                                    {at::randn({2, 24, 12}), 2},
                                    {at::randn({1, 12, 12}), 1}};
    std::atomic<int64_t> matrices = 0;
    testing::in_threads(ranks, [&](World& world) {
      std::vector<MatrixParts> own;
      const auto part = [&](const at::Tensor& x, int64_t dim) {
        const int64_t n = x.size(dim) / ranks;
        return x.narrow(dim, world.rank() * n, n).clone();
      };
      for (const Whole& m : all) own.push_back({part(m.x, m.dim), m.dim});
      int64_t mine = 0;
      map_whole_matrices(*world.all(), own, [&](const at::Tensor& x) {
        mine += x.size(0);
        return newton_schulz(x);
      });
      matrices += mine;
      EXPECT_LE(mine, (11 + ranks - 1) / ranks);  // of eleven
      for (size_t i = 0; i < all.size(); ++i) {
        const at::Tensor want = part(newton_schulz(all[i].x), all[i].dim);
        EXPECT_EQ(own[i].own.sizes(), want.sizes());
        if (want.numel() == 0) continue;
        // Batches of other sizes: products may round otherwise.
        EXPECT_LT((own[i].own - want).abs().max().item<double>(), 1e-5) << i;
      }
    });
    EXPECT_EQ(matrices, 11);
  }
}

}  // namespace
}  // namespace troupe
