// Context parallelism: which part of a microbatch's rows this rank has (rules CX1, CX3).
//
// A Batch with a slice has this rank's tokens only, [B, S / R] in the order of the row, and what
// was made of whole rows before they were cut (data/tokens/row_part.h): labels, positions, and the
// ids and labels that MTP modules look ahead to. The slice has the documents; Batch::documents_BS
// is undefined then.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "troupe/distributed/group/kv_exchange.h"
#include "troupe/distributed/group/ring_attention.h"
#include "troupe/distributed/group/token_sharding.h"
#include "troupe/distributed/mesh/key_plan.h"

namespace troupe {

class ContextSlice {
 public:
  ContextSlice(TokenChunks chunks, int64_t rank, WholeRows whole, const c10::Device& device);

  int64_t ranks() const { return chunks_.ranks(); }
  int64_t row_tokens() const { return chunks_.tokens(); }     // S
  int64_t all() const { return whole_.rows * row_tokens(); }  // B S
  const at::Tensor& places() const { return places_T_; }      // int64: own tokens' among all()

  // The keys that own queries see; window 0: none. Made when first asked for.
  std::shared_ptr<const KeyRows> keys(int64_t window) const;
  // The same keys, one rank's at a time.
  std::shared_ptr<const RingRows> ring(int64_t window) const;
  // int64 [B S]: where each token is among the rows of the ranks that share the microbatch, those
  // of one context rank cut over `tensor`'s, [context ranks, tensor ranks, most(tensor)].
  at::Tensor order(const TokenSharding& tensor) const;
  int64_t most(const TokenSharding& tensor) const;
  std::vector<int64_t> lengths() const;  // of the whole rows' documents, in order

 private:
  TokenChunks chunks_;
  int64_t rank_;
  WholeRows whole_;
  c10::Device device_;
  at::Tensor places_T_;
  mutable std::map<int64_t, std::shared_ptr<const KeyRows>> keys_;   // by window
  mutable std::map<int64_t, std::shared_ptr<const RingRows>> ring_;  // likewise
  mutable std::map<int64_t, at::Tensor> order_;                      // by tensor ranks
};

}  // namespace troupe
