// The usual block:  h = h + attention(norm1(h));  h = h + ffn(norm2(h)).
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace troupe {

class Block;
struct BlockShape;

struct PreNormBlock {
  static constexpr std::string_view kKind = "pre_norm";
  static constexpr std::string_view kHelp = "the feed-forward reads what attention added to";

  int64_t norms(bool attention) const { return attention ? 2 : 1; }  // of the model's width
  std::unique_ptr<Block> build(const BlockShape& shape) const;

  static void visit(auto&, auto&&) {}
};

}  // namespace troupe
