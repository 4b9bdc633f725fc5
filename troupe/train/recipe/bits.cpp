#include "troupe/train/recipe/bits.h"

#include <algorithm>
#include <string_view>
#include <variant>

#include "troupe/core/check.h"
#include "troupe/core/number/exact_sum.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

// Each adds a gradient of each use of a parameter: at most of the table, by embedding, head and MTP
// modules.
int64_t most_microbatches(const Recipe& r) {
  return kPairTerms / (r.model.mtp.depth + 2);
}

struct NotTaken {
  bool is_set;
  const char *key, *why;
};
using AllNotTaken = std::vector<NotTaken>;

AllNotTaken of_layout(const Recipe& r) {
  const ParallelConfig& p = r.parallel;
  const DispatcherConfig& rows = p.dispatcher;
  const bool other_rows = !std::holds_alternative<AutoDispatch>(rows) &&
                          !std::holds_alternative<AllToAllDispatch>(rows);
  return {
      {p.tensor > 1, "parallel.tensor",
       "adds parts of each product over ranks, in other orders than one rank does; set it to 1"},
      {p.context > 1, "parallel.context",
       "cuts each microbatch, so that gradients are sums of other tokens; set it to 1"},
      {p.expert_tensor > 1 || p.expert > std::max<int64_t>(1, r.model.moe.experts),
       p.expert_tensor > 1 ? "parallel.expert_tensor" : "parallel.expert",
       "cuts experts in slices, whose parts of a row are added in another order than one rank "
       "does; "
       "use at most as many expert ranks as experts, and expert_tensor 1"},
      {p.expert > 1 && p.dispatch != DispatchMode::kExact, "parallel.dispatch",
       "fast adds the rows of one rank first; set it to exact"},
      {p.expert > 1 && other_rows, "parallel.dispatcher",
       "does not say which microbatch a row is of; take auto or all_to_all"},
      {p.sum != SumType::kFp32, "parallel.sum",
       "rounds gradients on their way between ranks; set it to fp32"},
      {p.overlap != Overlap::kNone, "parallel.overlap",
       "adds an expert's gradients while other rows travel; set it to none"},
      {p.rebalance.every > 0, "parallel.rebalance.every",
       "moves experts by the load of the ranks there are; set it to 0"},
  };
}

AllNotTaken of_routing(const MoeConfig& moe) {
  AllNotTaken out = {
      {std::holds_alternative<QuantileRouting>(moe.router), "model.moe.router.kind",
       "quantile adds thresholds of each rank's microbatches in f32; take topk_softmax or "
       "sigmoid_bias"},
      {moe.capacity.pad, "model.moe.capacity.pad",
       "gives experts rows by the ranks that send them; set it to false"},
      {moe.capacity.budget > 0, "model.moe.capacity.budget",
       "bounds the rows of a rank; set it to 0"},
      {moe.ffn.impl != ExpertsImpl::kGrouped, "model.moe.impl",
       "adds the gradients of several microbatches before they are handed on; take grouped"},
      {moe.ffn.quantize.inputs >= 0 || moe.ffn.quantize.rematerialize >= 0, "model.moe.quantize",
       "rounds rows in groups that other rows are in; leave it out"},
  };
  const BalanceConfig* const balance = std::visit(
      [](const auto& c) -> const BalanceConfig* {
        if constexpr (requires { c.balance; }) return &c.balance;
        return nullptr;
      },
      moe.router);
  if (balance == nullptr) return out;
  out.push_back({balance->global_loss != 0, "model.moe.router.balance.global_loss",
                 "weighs a microbatch by those that all ranks had so far; take aux_loss"});
  out.push_back({balance->batched_loss != 0 && balance->batched_scope == LossScope::kAll,
                 "model.moe.router.balance.batched_scope",
                 "all counts the microbatches that all ranks have at a time; take rank or group"});
  return out;
}

AllNotTaken of_training(const Recipe& r) {
  const TrainConfig& t = r.train;
  const std::string_view optimizer = t.optimizer.kind();
  const bool by_element = optimizer == "adamw" || optimizer == "sgd" || optimizer == "lion";
  const int64_t micro = t.micro_batch.value_or(1);
  return {
      {r.run.device != DeviceKind::kCpu, "run.device",
       "must be cpu: products and sums of a GPU are not compared between layouts yet"},
      {!r.run.deterministic, "run.deterministic",
       "false asks for bits that do not even repeat; leave it out"},
      {t.precision == Precision::kFp16 || t.precision == Precision::kFp64, "train.precision",
       "must be fp32, bf16 or auto: gradients of fp16 are scaled, and of fp64 the sums have too "
       "few bits"},
      {!t.micro_batch, "train.micro_batch",
       "is chosen by the layout, and a gradient is of one microbatch; give it"},
      {micro > 0 && batch_of(r) / micro > most_microbatches(r), "train.micro_batch",
       "makes more microbatches of a step than the sums have room for, 8192 over 2 and the MTP "
       "modules; make it larger"},
      {t.fp8.has_value(), "train.fp8", "shares scales between rows; leave it out"},
      {t.teacher.has_value(), "train.teacher", "is not compared between layouts yet; leave it out"},
      {t.loss != LossKind::kCrossEntropy, "train.loss",
       "dpo is not compared between layouts yet; take cross_entropy"},
      {t.cuda_graph, "train.cuda_graph", "is of a GPU; leave it out"},
      {t.update == UpdatePlace::kInBackward, "train.update",
       "adds the norm layer by layer, in floats; take after_backward"},
      {!by_element, "train.optimizer",
       "updates whole matrices, in parts that the layout gives; take adamw, sgd or lion"},
      {base_of(t.optimizer).moments == MomentType::kInt8, "train.optimizer.moments",
       "int8 shares scales in blocks that begin where the layout cuts; take f32 or bf16"},
      {has_adapters(r.model), "model.lora",
       "adds the gradients of several microbatches of an expert's adapters; leave it out"},
  };
}

}  // namespace

std::vector<std::pair<std::string, std::string>> bits_faults(const Recipe& r) {
  std::vector<std::pair<std::string, std::string>> out;
  if (r.run.bits != Bits::kLayout) return out;
  AllNotTaken all = of_layout(r);
  for (const AllNotTaken& some :
       {of_training(r), r.model.moe.experts > 0 ? of_routing(r.model.moe) : AllNotTaken()}) {
    all.insert(all.end(), some.begin(), some.end());
  }
  for (const NotTaken& x : all) {
    if (!x.is_set) continue;
    out.emplace_back(x.key, std::string("does not go with run.bits layout: it ") + x.why +
                                ", or set run.bits to repeat");
  }
  return out;
}

Recipe with_axes_of_bits(const Recipe& recipe) {
  Recipe out = recipe;
  if (out.run.bits != Bits::kLayout) return out;
  ParallelConfig& p = out.parallel;
  for (int64_t* const axis : {&p.tensor, &p.context, &p.expert_tensor}) {
    if (*axis == 0) *axis = 1;
  }
  if (p.expert == 0 && p.dispatch != DispatchMode::kExact) p.expert = 1;
  if (std::holds_alternative<AutoDispatch>(p.dispatcher)) p.dispatcher = AllToAllDispatch();
  return out;
}

void require_bits(const Recipe& resolved) {
  for (const auto& [key, why] : bits_faults(resolved)) fail(Code::kBadValue, key, why);
}

}  // namespace troupe
