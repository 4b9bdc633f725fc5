#include "troupe/train/loop/batch_loader.h"

#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/stop.h"

namespace troupe {

BatchLoader::BatchLoader(const RunContext& run, const ParallelSetup& setup, const Dataset& data,
                         const c10::Device& device)
    : run_(run), setup_(setup), data_(data), device_(device) {}

void BatchLoader::start() {
  const auto read = [this, sample = run_.state.done.samples](int64_t) mutable {
    const int64_t size = size_at(sample), micro = run_.recipe.plan.micro_batch;
    const RankShare share = own_part(size);
    const int64_t first = sample + share.first * micro;
    sample += size;
    return data_.batch(first, share.count * micro);
  };
  reader_.emplace(read, run_.state.done.steps, 2);
}

int64_t BatchLoader::size_at(int64_t sample) const {
  return batch_at(run_.recipe.train.batch_ramp, run_.recipe.plan.batch, sample);
}

RankShare BatchLoader::own_part(int64_t size) const {
  return share_of(setup_.state, size / run_.recipe.plan.micro_batch);
}

BatchLoader::Ahead BatchLoader::once_a_replica(double ready, const TargetSums& own) const {
  const double once = setup_.state.first_of_replica() ? 1 : 0;
  return {ready, once * own.weight, once * static_cast<double>(own.tokens)};
}

BatchLoader::Ahead BatchLoader::ahead() {
  const TokenBatch* const batch = setup_.state.alone() || !reader_ ? nullptr : reader_->peek();
  return batch == nullptr ? Ahead() : once_a_replica(1, target_sums(*batch));
}

void BatchLoader::agree(const Ahead& sums) {
  agreed_.reset();
  if (sums[0] == static_cast<double>(setup_.state.size())) agreed_ = sums;
}

// All ranks are here, one that `stops` without a batch too, so that all learn of a stop before the
// same step.
BatchLoader::Ahead BatchLoader::sum_now(const TargetSums& own, bool stops,
                                        StopControl& stop) const {
  const std::string why = stop.own_reason();
  const Ahead mine = once_a_replica(0, own);
  const std::vector<double> all =
      setup_.state.all_reduce({mine[1], mine[2], stops || !why.empty() ? 1. : 0.});
  if (all[2] > 0) stop.stop_for(why.empty() ? "another rank was asked to stop" : why);
  return {0, all[0], all[1]};
}

std::optional<Feed> BatchLoader::next(StopControl& stop) {
  if (!reader_) start();
  const bool alone = setup_.state.alone();
  const std::optional<Ahead> agreed = std::exchange(agreed_, std::nullopt);
  std::optional<TokenBatch> batch;
  try {
    batch = reader_->next();
  } catch (const AskedToStop&) {
    if (!alone) sum_now({}, true, stop);
    stop.stop_for(stop.own_reason());
    return {};
  }
  const int64_t sample = run_.state.done.samples, size = size_at(sample);
  const RankShare share = own_part(size);
  const int64_t micro = run_.recipe.plan.micro_batch;
  TROUPE_CHECK(batch->first_sample == sample + share.first * micro, "batch of sample",
               batch->first_sample, "at", sample);
  Feed feed = make_feed(*batch, micro, device_, share.steps, row_cut(run_.recipe, setup_));
  if (alone) return feed;
  const Ahead all = agreed ? *agreed : sum_now({feed.weight_sum, feed.loss_tokens}, false, stop);
  feed.weight_sum = all[1];
  feed.loss_tokens = static_cast<int64_t>(all[2]);
  feed.all_microbatches = size / micro;
  feed.first_sample = sample;
  feed.samples = size;
  feed.tokens = size * run_.recipe.data.sequence;
  feed.first_token = share.first * micro * run_.recipe.data.sequence;
  return feed;
}

}  // namespace troupe
