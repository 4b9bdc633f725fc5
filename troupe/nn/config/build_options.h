// What a model is built with besides its config.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "troupe/nn/config/config.h"
#include "troupe/nn/parts/tensor_parts.h"

namespace troupe {

class Block;        // nn/blocks/block.h
struct BlockShape;  // nn/blocks/block.h

// How a model is cut over ranks (nn/parts/tensor_parts.h). Under tensor parallelism the input and output
// of a unit are this rank's tokens, rows tensor.edge.own(B S) of the batch's B S, while each rank
// has the whole Batch. With context parallelism as well, B S are the tokens of a Batch's slice,
// which all ranks of one tensor group share.
struct BuildOptions {
  std::vector<int64_t> units = {};  // that this rank runs, in any order; empty: all
  // Makes the dispatcher of MoE layer `layer`; absent: all experts are on this rank.
  std::function<std::unique_ptr<Dispatcher>(int64_t layer, const MoeConfig& moe)> dispatcher = {};
  TensorParts tensor = {};
  // Makes each block; absent: of config.block's kind. What costs_of counts is that kind's.
  std::function<std::unique_ptr<Block>(const BlockShape& shape)> block = {};
};

}  // namespace troupe
