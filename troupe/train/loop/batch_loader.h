// The batches of a run in order, made ahead by a thread: this rank's part of each, with the sizes
// and the loss weight of the whole.
//
//   loader.agree(sums of all ranks' loader.ahead())   one step ahead, in the step's own all-reduce
//   feed = loader.next(stop)                          then sends nothing
//
// Where some rank's next batch was not ready, ranks sum in next(), and wait for it.
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

#include "troupe/data/tokens/batch_reader.h"
#include "troupe/data/tokens/dataset.h"
#include "troupe/train/forecast/step_work.h"
#include "troupe/train/layout/parallel_setup.h"
#include "troupe/train/loop/run_context.h"
#include "troupe/train/loop/stop_control.h"
#include "troupe/train/step/feed.h"

namespace troupe {

class BatchLoader {
 public:
  // All outlive it. The first next() starts the thread, at the first sample that `run.state` has not
  // done.
  BatchLoader(const RunContext& run, const ParallelSetup& setup, const Dataset& data,
              const c10::Device& device);

  // Describes the next batch without waiting: 1 where it is ready, and the weight and number of
  // this rank's targets, once a replica. One rank has nothing to agree on.
  using Ahead = std::array<double, 3>;
  Ahead ahead();
  void agree(const Ahead& sums);

  // The feed of the next batch. Absent where this rank was asked to stop while it waited for a
  // server of the data. Where ranks sum here, `stop` learns what another rank was asked.
  std::optional<Feed> next(StopControl& stop);

 private:
  void start();
  int64_t size_at(int64_t sample) const;  // a ramp may change it
  RankShare own_part(int64_t size) const;
  Ahead once_a_replica(double ready, const TargetSums& own) const;
  Ahead sum_now(const TargetSums& own, bool stops, StopControl& stop) const;

  const RunContext& run_;
  const ParallelSetup& setup_;
  const Dataset& data_;
  const c10::Device device_;
  std::optional<Ahead> agreed_;
  std::optional<BatchReader> reader_;
};

}  // namespace troupe
