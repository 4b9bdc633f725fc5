// All kinds of block: the one list. A config has kKind, kHelp, visit(), build(), and norms(), how
// many norms of the model's width a block has, which costs are counted by.
#pragma once

#include "troupe/core/config/one_of.h"
#include "troupe/nn/blocks/parallel_block.h"
#include "troupe/nn/blocks/post_norm.h"
#include "troupe/nn/blocks/pre_norm.h"

namespace troupe {

using BlockConfig = OneOf<PreNormBlock, PostNormBlock, ParallelBlock>;

inline int64_t norms_of(const BlockConfig& config, bool attention) {
  return std::visit([&](const auto& kind) { return kind.norms(attention); }, config);
}

}  // namespace troupe
