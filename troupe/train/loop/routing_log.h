// The routers' choices of whole steps on disk (R15): written by a run every log.routing steps, and
// taken by another in place of its routers' own (run.replay).
//
//   RUN/routing/step-000012-00001-of-00004.trace    rank 1 of 4, nn/moe/routing_trace.h
//
// Microbatches are numbered over all ranks, so that a run in another layout, whose micro batch is
// the same, has the same choices.
#pragma once

#include <cstdint>
#include <string>

#include "troupe/core/file/publish.h"
#include "troupe/train/observe/step_report.h"
#include "troupe/train/step/feed.h"

namespace troupe {

// The number of a rank's first microbatch among those of all ranks.
int64_t first_microbatch(const Feed& feed);

struct RoutingPlace {
  std::string folder;  // RUN/routing
  int64_t step;        // that the choices are made in, from 1
  int64_t rank, ranks;
};

// Writes the choices of a step whose feed had keep_choices; E experts. Rank 0 removes the files
// that another number of ranks wrote for the step.
void write_routing(Fs& fs, const RoutingPlace& place, const Feed& feed, const StepOutput& output,
                   int64_t experts);

// The choices of that step for each of the feed's microbatches and every MoE layer, MTP modules'
// too. Throws E3001 with the folder where a step, a layer or a microbatch is missing or has another
// number of tokens; E2005 with the file where it is of another model: of a layer that has no experts
// here, of another number of experts, or of another K.
void replay_routing(const std::string& folder, int64_t step, const ModelConfig& model, Feed& feed);

}  // namespace troupe
