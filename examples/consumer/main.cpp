// Routes four tokens to two of six experts each and prints who goes where.
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>

#include <cstdio>

#include "troupe/ops/topk_route.h"

int main() {
  const int64_t T = 4, E = 6, K = 2;
  const at::Tensor logits_TE = at::randn({T, E});
  const auto [ids_TK, weights_TK, counts_E] =
      troupe::topk_route(logits_TE, K, /*renormalize=*/true);
  for (int64_t t = 0; t < T; ++t) {
    std::printf("token %d:", static_cast<int>(t));
    for (int64_t k = 0; k < K; ++k) {
      std::printf("  expert %d (%.2f)", ids_TK[t][k].item<int>(), weights_TK[t][k].item<float>());
    }
    std::printf("\n");
  }
  return 0;
}
