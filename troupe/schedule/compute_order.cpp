#include "troupe/schedule/compute_order.h"

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/schedule/orders/orders.h"

namespace troupe {
namespace {

int rank_in_vee(int stage, int ranks) {
  return std::min(stage, 2 * ranks - 1 - stage);
}

bool is_vee(const StepWork& work) {
  const int stages = static_cast<int>(work.stage_ranks.size());
  bool out = stages == 2 * work.ranks;
  for (int s = 0; out && s < stages; ++s) {
    out = work.stage_ranks[static_cast<size_t>(s)] == rank_in_vee(s, work.ranks);
  }
  return out;
}

Pipeline pipeline_of(const StepWork& work) {
  const int stages = std::max(1, static_cast<int>(work.stage_ranks.size()));
  const bool asked = is_in_a_vee(work.order);
  // On one rank two stages are both a V and a loop.
  const bool vee = is_vee(work) && (work.ranks > 1 || asked);
  TROUPE_CHECK(stages % work.ranks == 0, stages, "stages on", work.ranks, "ranks");
  TROUPE_CHECK(vee || !asked, "the order", to_text(work.order),
               "is of a V: two stages a rank, s and", 2 * work.ranks - 1, "- s");
  for (int s = 0; !vee && s < std::ssize(work.stage_ranks); ++s) {
    const int rank = s % work.ranks, is = work.stage_ranks[static_cast<size_t>(s)];
    TROUPE_CHECK(is == rank, "stage", s, "is on rank", is, "and belongs on rank", rank, "of",
                 work.ranks);
  }
  return {.ranks = work.ranks, .stages = stages, .microbatches = work.microbatches, .vee = vee};
}

std::vector<StageStep> steps_of(const StepWork& work, const Pipeline& pipeline, int rank) {
  const bool one_each = pipeline.stages == pipeline.ranks;
  const auto is_loop = [&](const char* order) {
    TROUPE_CHECK(!pipeline.vee, "the order", order,
                 "is of a loop, not of a V; use zbv, dualpipev or gpipe");
  };
  TROUPE_CHECK(
      !work.beside || (work.order != PipelineOrder::kZb1p && work.order != PipelineOrder::kZbv &&
                       !pipeline.vee),
      "backward beside forward is of the orders 1f1b and interleaved, not of late weights");
  switch (work.training ? work.order : PipelineOrder::kGpipe) {
    case PipelineOrder::kGpipe: return gpipe(pipeline, rank, work.training);
    case PipelineOrder::kZbv: return late_weights_in_a_vee(pipeline, rank);
    case PipelineOrder::kDualPipeV: return dual_pipe_in_a_vee(pipeline, rank);
    case PipelineOrder::k1f1b:
      TROUPE_CHECK(one_each, "the order 1f1b has one stage a rank, not", pipeline.stages, "on",
                   pipeline.ranks, "ranks; use interleaved");
      break;
    case PipelineOrder::kZb1p:
      TROUPE_CHECK(one_each, "the order zb1p has one stage a rank, not", pipeline.stages, "on",
                   pipeline.ranks, "ranks; use interleaved");
      return late_weights(pipeline, rank);
    case PipelineOrder::kInterleaved:
      is_loop("interleaved");
      TROUPE_CHECK(!one_each || pipeline.ranks == 1, "the order interleaved has several stages a",
                   "rank, not one; use 1f1b");
      break;
    case PipelineOrder::kAuto:
      if (pipeline.vee) return late_weights_in_a_vee(pipeline, rank);
      break;
  }
  return one_forward_one_backward(pipeline, rank);
}

// The computations of a rank, a stage at a time, as those of its chunks.
class ChunkList {
 public:
  ChunkList(const StepWork& work, const Pipeline& pipeline)
      : chunks_(static_cast<size_t>(pipeline.stages)),
        again_(static_cast<size_t>(work.chunks), !work.training) {
    for (int c = 0; c < work.chunks; ++c) {
      chunks_[work.stages.empty() ? 0 : static_cast<size_t>(work.stages[static_cast<size_t>(c)])]
          .push_back(c);
    }
    for (const int c : work.recomputed) again_.at(static_cast<size_t>(c)) = true;
  }

  // One list for each chunk: a recomputed one goes forward again before it goes back.
  std::vector<std::vector<Action>> of(const StageStep& step) const {
    std::vector<std::vector<Action>> out;
    for (const int c : chunks_[static_cast<size_t>(step.stage)]) {
      const bool again = again_[static_cast<size_t>(c)];
      if (step.kind == Kind::kForward) {
        out.push_back({{again ? Kind::kForwardLight : Kind::kForward, c, step.microbatch}});
        continue;
      }
      out.push_back({{step.kind, c, step.microbatch}});
      if (again && step.kind != Kind::kBackwardWeight) {
        out.back().insert(out.back().begin(), {Kind::kForward, c, step.microbatch});
      }
    }
    if (step.kind != Kind::kForward) std::reverse(out.begin(), out.end());
    return out;
  }

 private:
  std::vector<std::vector<int>> chunks_;  // of each stage
  std::vector<bool> again_;
};

void extend(std::vector<Action>& list, const std::vector<Action>& actions) {
  list.insert(list.end(), actions.begin(), actions.end());
}

// A backward and the forward that follows it, chunk beside chunk, from the last and from the first.
void add_beside(std::vector<Action>& list, std::vector<std::vector<Action>> back,
                const std::vector<std::vector<Action>>& ahead) {
  for (size_t i = 0; i < std::max(back.size(), ahead.size()); ++i) {
    if (i < back.size() && i < ahead.size()) back[i].back().beside = true;
    if (i < back.size()) extend(list, back[i]);
    if (i < ahead.size()) extend(list, ahead[i]);
  }
}

}  // namespace

Schedule compute_order(const StepWork& work) {
  const Pipeline pipeline = pipeline_of(work);
  const ChunkList chunks(work, pipeline);
  Schedule out;
  for (int rank = 0; rank < work.ranks; ++rank) {
    std::vector<Action>& list = out.emplace_back();
    const std::vector<StageStep> steps = steps_of(work, pipeline, rank);
    for (size_t i = 0; i < steps.size(); ++i) {
      const bool beside = work.beside && i + 1 < steps.size() && steps[i].kind == Kind::kBackward &&
                          steps[i + 1].kind == Kind::kForward &&
                          steps[i].microbatch != steps[i + 1].microbatch;
      if (beside) {
        add_beside(list, chunks.of(steps[i]), chunks.of(steps[i + 1]));
        ++i;
      } else {
        for (const std::vector<Action>& actions : chunks.of(steps[i])) extend(list, actions);
      }
    }
  }
  return out;
}

std::vector<int> graphs_held(const StepWork& work) {
  const Pipeline pipeline = pipeline_of(work);
  std::vector<int> held(static_cast<size_t>(pipeline.stages), 0), most = held;
  for (int rank = 0; rank < work.ranks; ++rank) {
    for (const StageStep& step : steps_of(work, pipeline, rank)) {
      const auto stage = static_cast<size_t>(step.stage);
      if (step.kind == Kind::kForward) most[stage] = std::max(most[stage], ++held[stage]);
      if (step.kind == Kind::kBackward || step.kind == Kind::kBackwardInput) --held[stage];
    }
  }
  return most;
}

}  // namespace troupe
