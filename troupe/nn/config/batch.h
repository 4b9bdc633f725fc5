// What goes into a unit of a model and what comes out of it.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "troupe/nn/moe/moe_losses.h"
#include "troupe/nn/moe/moe_stats.h"
#include "troupe/ops/preference_options.h"

namespace troupe {

class ContextSlice;  // nn/attention/context_slice.h
class KvCache;       // nn/attention/kv_cache.h
struct SoftTargets;  // ops/soft_targets.h
struct Preference;   // below

constexpr int64_t kIgnoredLabel = -100;  // a target that does not count

// Tokens and targets of one MTP module (nn/attention/ahead.h).
struct AheadTokens {
  at::Tensor ids_BS, labels_BS;
  at::Tensor weights_BS;  // undefined: all 1
};

struct Batch {                 // one microbatch on the model's device; S may differ between batches
  at::Tensor ids_BS;           // int64: tokens
  at::Tensor labels_BS = {};   // int64: targets (already shifted); undefined: no loss
  at::Tensor weights_BS = {};  // f32 weight of each target, 0: not counted; undefined: all 1
  at::Tensor documents_BS = {};  // int32, never falling along a row: tokens see their own document
                                 // alone; undefined: a row is one document
  at::Tensor positions_BS = {};  // int64 for rotary and learned; undefined: 0 .. S-1, or from the
                                 // start of each document
  at::Tensor valid_BS = {};  // bool, false: padding that no router sees (G3); undefined: all true
  std::vector<at::Tensor> replay_TK = {};  // choices to take, for each layer, in place of the
                                           // routers' own (R15); empty: none
  // One for each MTP module; empty: made of the rows, which are whole then.
  std::vector<AheadTokens> ahead = {};
  // Where rows are cut over ranks: which of their tokens these are (nn/attention/context_slice.h).
  std::shared_ptr<const ContextSlice> slice = nullptr;
  // A teacher's words of these tokens, for the head's loss; null: there is none.
  std::shared_ptr<const SoftTargets> soft = nullptr;
  // Rows 2 p and 2 p + 1 are a preference pair, for the head's loss; null: they are none.
  std::shared_ptr<const Preference> preference = nullptr;
  KvCache* cache = nullptr;  // generation: keys and values of earlier calls
};

// Of a microbatch of preference pairs (ops/preference_loss.h).
struct Preference {
  PreferenceOptions options = {};
  at::Tensor reference_B = {};  // ref; undefined: this is the reference, and lp is asked for
};

// The number of tokens of a microbatch on all ranks that share it.
int64_t whole_tokens(const Batch& batch);

struct UnitResult {
  at::Tensor h;           // [n t, D], own tokens, to the next unit: n = states_after(); undefined
                          // after the head
  at::Tensor loss_sum;    // head alone: sum over own targets of weight * nll, with graph
  at::Tensor weight_sum;  // head alone: sum of the weights, no graph
  // Head alone, with Batch::preference: lp of each row, no graph, and rewards_3 beside a reference.
  at::Tensor log_probs_B, rewards_3;
  // Head alone, with Batch::soft: the parts of loss_sum, ce and kl of ops/soft_targets.h, no graph.
  at::Tensor ce_sum, kl_sum;
  at::Tensor mtp_sum;  // MTP: to be added to loss_sum, its factor included; undefined: none
  std::vector<MoeLoss> losses;  // auxiliary, with graph; the caller scales (A7) and adds them
  std::vector<MoeStats> stats;  // of the unit's MoE layers
  std::vector<LayerChoices> choices;
};

}  // namespace troupe
