// Norms behind the parts (OLMo 2, FlexOlmo):  h = h + norm1(attention(h));  h = h + norm2(ffn(h)).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace troupe {

class Block;
struct BlockShape;

struct PostNormBlock {
  static constexpr std::string_view kKind = "post_norm";
  static constexpr std::string_view kHelp = "norms stand behind both parts (OLMo 2)";

  int64_t norms(bool attention) const { return attention ? 2 : 1; }  // of the model's width
  std::unique_ptr<Block> build(const BlockShape& shape) const;

  static void visit(auto&, auto&&) {}
};

}  // namespace troupe
