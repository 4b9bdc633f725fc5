// The kinds of block: the one list. A config has kKind, kHelp, visit(), norms(), how many norms of the model's width a
// block has, which costs are counted by, and build(), which stands with the class in nn/blocks/<kind>.cpp.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "troupe/core/config/one_of.h"

namespace troupe {

class Block;        // nn/blocks/block.h
struct BlockShape;  // nn/blocks/block.h

// The usual block:  h = h + attention(norm1(h));  h = h + ffn(norm2(h)).
struct PreNormBlock {
  static constexpr std::string_view kKind = "pre_norm";
  static constexpr std::string_view kHelp = "the feed-forward reads what attention added to";

  int64_t norms(bool attention) const { return attention ? 2 : 1; }
  std::unique_ptr<Block> build(const BlockShape& shape) const;

  static void visit(auto&, auto&&) {}
};

// A norm after each part (OLMo 2, FlexOlmo):  h = h + norm1(attention(h));  h = h + norm2(ffn(h)).
struct PostNormBlock {
  static constexpr std::string_view kKind = "post_norm";
  static constexpr std::string_view kHelp = "norms stand behind both parts (OLMo 2)";

  int64_t norms(bool attention) const { return attention ? 2 : 1; }
  std::unique_ptr<Block> build(const BlockShape& shape) const;

  static void visit(auto&, auto&&) {}
};

// Attention and feed-forward read the same (GPT-J, PaLM):  x = norm(h);  h = h + attention(x) + ffn(x).
struct ParallelBlock {
  static constexpr std::string_view kKind = "parallel";
  static constexpr std::string_view kHelp = "attention and feed-forward read one norm of h (PaLM)";

  int64_t norms(bool /*attention*/) const { return 1; }
  std::unique_ptr<Block> build(const BlockShape& shape) const;

  static void visit(auto&, auto&&) {}
};

using BlockConfig = OneOf<PreNormBlock, PostNormBlock, ParallelBlock>;

inline int64_t norms_of(const BlockConfig& config, bool attention) {
  return std::visit([&](const auto& kind) { return kind.norms(attention); }, config);
}

}  // namespace troupe
