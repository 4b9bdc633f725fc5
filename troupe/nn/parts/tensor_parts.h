// What a module knows of tensor and context parallelism (T3, T5, CX6): which ranks share its
// weights, what is its own of them, and which have other tokens of its rows. A module's parameters
// take boxes when it is made, and its input and output pass the edge; it knows no group and no
// mesh.
#pragma once

#include <cstdint>
#include <optional>

#include "troupe/distributed/group/head_exchange.h"
#include "troupe/distributed/group/kv_exchange.h"
#include "troupe/distributed/group/ring_attention.h"
#include "troupe/distributed/group/token_sharding.h"
#include "troupe/distributed/params/param.h"
#include "troupe/nn/parts/context.h"
#include "troupe/nn/parts/lora.h"

namespace troupe {

struct TensorParts {
  TokenSharding sharding = {};
  bool split_vocab = false;   // tables are cut by rows; else each rank has them whole
  bool split_shared = false;  // shared experts by their width; likewise
  KvExchange keys = {};       // to the ranks that have other tokens of the same rows
  // To the same: attention is of whole rows of some heads, in place of own tokens' keys by need.
  std::optional<HeadExchange> head_exchange = {};
  // To the same: keys stay with their rank and are joined one rank's at a time.
  std::optional<RingAttention> ring = {};
  TokenSharding microbatch =
      {};  // all ranks that share a microbatch, `sharding`'s neighbors come first

  // This rank's part of dimension `dim`, which the ranks divide.
  void cut(Param& p, int64_t dim) const;
  // Cuts rows by key head. There may be fewer heads than ranks: ranks then have one each, the same
  // as their neighbors.
  void cut_key_heads(Param& p, int64_t heads) const;
  // The same of an adapter of a matrix whose rows (0) or columns (1) are cut: of B or of A.
  void cut(std::optional<LoraFactors>& adapter, int64_t dim) const;
  void cut_key_heads(std::optional<LoraFactors>& adapter, int64_t heads) const;
  // Cuts a table into blocks of kVocabBlock rows, which the ranks need not divide.
  void cut_table(Param& p) const;

  int64_t heads(int64_t all) const { return all / sharding.ranks(); }
  int64_t key_heads(int64_t all) const {
    return all >= sharding.ranks() ? all / sharding.ranks() : 1;
  }
  // So many neighbors have the same key heads.
  int64_t key_repeat(int64_t all) const {
    return all >= sharding.ranks() ? 1 : sharding.ranks() / all;
  }
};

// The context of the `all` tokens of which `own` is this rank's.
inline Context of_all_tokens(const Context& own, const TokenSharding& sharding, int64_t all) {
  Context out = own;
  out.first_token -= sharding.own(all).from;
  return out;
}

inline constexpr int64_t kVocabBlock = 64;
constexpr int64_t vocab_blocks(int64_t rows) {
  return (rows + kVocabBlock - 1) / kVocabBlock;
}

}  // namespace troupe
