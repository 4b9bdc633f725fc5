// All operators: torch.ops.troupe.* in Python. Each define_x is in ops/x.cpp, with its schema.
#include <torch/library.h>

namespace troupe {

void define_moe_ffn(torch::Library& m);
void define_topk_route(torch::Library& m);

}  // namespace troupe

TORCH_LIBRARY(troupe, m) {
  troupe::define_moe_ffn(m);
  troupe::define_topk_route(m);
}
