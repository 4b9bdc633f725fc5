// Which layers of a model have Gated DeltaNet in place of attention, and its sizes.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

// nn/attention/delta_net.h has the formulas.
struct DeltaConfig {
  std::string layers = "1";                  // which ones, a pattern (moe_pattern.h)
  int64_t key_heads = 16, value_heads = 32;  // a multiple of the former
  int64_t key_dim = 128, value_dim = 128;    // of a head
  int64_t conv = 4;                          // tokens that the convolution reads

  static void visit(auto& c, auto&& f) {
    f("layers", c.layers,
      "Layers with it in place of attention: \"1\" all, \"2\" every second, or a list.");
    f("key_heads", c.key_heads, "Heads of queries and keys.");
    f("value_heads", c.value_heads, "Heads of values, a multiple of key_heads.");
    f("key_dim", c.key_dim, "Query and key dimensions per head.");
    f("value_dim", c.value_dim, "Value dimensions per head.");
    f("conv", c.conv, "Tokens that the short convolution reads (2 or more).");
  }
};

}  // namespace troupe
