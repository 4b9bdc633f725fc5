// Attention and feed-forward read the same (GPT-J, PaLM):  x = norm(h);  h = h + attention(x) +
// ffn(x).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace troupe {

class Block;
struct BlockShape;

struct ParallelBlock {
  static constexpr std::string_view kKind = "parallel";
  static constexpr std::string_view kHelp = "attention and feed-forward read one norm of h (PaLM)";

  int64_t norms(bool /*attention*/) const { return 1; }  // of the model's width
  std::unique_ptr<Block> build(const BlockShape& shape) const;

  static void visit(auto&, auto&&) {}
};

}  // namespace troupe
