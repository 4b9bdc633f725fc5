// A short run whose layout tests change: its samples, what a rank computes of them, and how that is
// compared with one process.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "troupe/core/number/rng.h"
#include "troupe/testing/torch/ranks.h"
#include "troupe/train/observe/metrics.h"
#include "troupe/train/params/replicas.h"
#include "troupe/train/recipe/recipe_of_test.h"
#include "troupe/train/run/sample.h"
#include "troupe/train/step/learner.h"

namespace troupe {

// What the samples are.
struct Text {
  int64_t sequence = 16;
  bool packed = false;  // of documents, with padding behind the last
  bool few = false;     // one target a sample; each third sample is padding but for two tokens
};

// Samples [first, first + count) of step `step`'s batch, some targets uncounted, one sample without
// any. Ids are below 200.
inline TokenBatch samples(const Text& text, int64_t step, int64_t first, int64_t count) {
  const int64_t S = text.sequence;
  TokenBatch out{.first_sample = first, .B = count, .S = S};
  const Rng rng(5, stream_of("samples " + std::to_string(step)));
  for (int64_t b = first; b < first + count; ++b) {
    int32_t document = 0, place = 0;
    for (int64_t s = 0; s <= S; ++s) {
      const double u = rng.uniform(static_cast<uint64_t>(b * (S + 1) + s));
      out.ids.push_back(static_cast<int32_t>(u * 200));
      if (s == S) continue;
      const bool padding = (text.packed && s >= S - b % 4) || (text.few && b % 3 == 1 && s > 1);
      const bool begins = s == 0 || (text.packed && !padding && u < 0.2);
      document = s == 0 ? 0 : document + static_cast<int32_t>(begins);
      place = begins ? 0 : place + 1;
      const bool chosen = text.few ? s == (b % 3 == 1 ? 1 : 5 * b % S) : u > 0.3;
      const bool counts = b != 3 && chosen && !padding;
      out.weights.push_back(counts ? 1.0F : 0.0F);
      out.positions.push_back(padding ? 0 : place);
      out.documents.push_back(padding ? -1 : document);
    }
    out.sources.push_back(0);
  }
  return out;
}

inline Feed feed_of(const ResolvedRun& run, const Text& text, const ParallelSetup& setup,
                    int64_t step) {
  const int64_t batch = run.plan.batch, micro = run.plan.micro_batch;
  const Feed all = make_feed(samples(text, step, 0, batch), micro, c10::kCPU);
  const RankShare share = share_of(setup.state, batch / micro);
  const int64_t first = share.first * micro;
  Feed out = make_feed(samples(text, step, first, share.count * micro), micro, c10::kCPU,
                       share.steps, row_cut(run, setup));
  out.weight_sum = all.weight_sum;
  out.loss_tokens = all.loss_tokens;
  out.all_microbatches = all.all_microbatches;
  out.first_sample = all.first_sample;
  out.samples = all.samples;
  out.tokens = all.tokens;
  out.first_token = first * run.data.sequence;
  return out;
}

struct Figures {
  std::vector<double> loss, mtp, norm;
  std::map<std::string, double> aux;        // of the last step, summed over ranks
  std::map<std::string, double> mean_aux;   // of all steps, as the log has them
  std::vector<std::vector<double>> counts;  // of experts, by layer: likewise
  std::vector<TokenList> made;              // what two prompts are followed by
  double evaluated = 0, evaluated_odd = 0;  // of rows as in training, and 5 tokens shorter
  // Whole, as of one process: the last step's gradients, before clipping, and the weights after it.
  std::map<std::string, at::Tensor> gradients, weights;
};

// How far ranks may be from one process: losses and norms relative to themselves; gradients and
// weights element by element, relative to the largest of the tensor.
struct Bars {
  double loss = 0, gradient = 0, weight = 0;
};
// By the precision of the recipe. AdamW divides a gradient by its own size, which makes of f32's
// rounding a difference of weights, and that one of the next steps' gradients.
inline Bars bars_of(Precision precision) {
  return precision == Precision::kFp64 ? Bars{1e-10, 1e-10, 1e-10} : Bars{1e-5, 5e-4, 1e-4};
}

// The part of a whole tensor that `p` has.
inline at::Tensor box_of(const at::Tensor& whole, const Param& p) {
  at::Tensor out = whole;
  for (size_t d = p.per_expert ? 1 : 0; d < p.size.size(); ++d) {
    out = out.narrow(static_cast<int64_t>(d), p.offset[d], p.size[d]);
  }
  if (!p.per_expert) return out;
  std::vector<at::Tensor> rows;
  for (const int64_t e : p.experts) rows.push_back(out[e]);
  return at::stack(rows);
}

// The largest difference between a part and the same part of one process, over the largest value of
// the whole.
inline double worst(const at::Tensor& part, const at::Tensor& same, const at::Tensor& whole) {
  if (same.numel() == 0) return 0;
  return (part - same).abs().max().item<double>() / (whole.abs().max().item<double>() + 1e-6);
}

// Gradients of the step that was: this rank's part of each, beside one process's, or into `out`.
// `moved`: experts have changed ranks since, and their gradients have not.
inline void take_gradients(const ParamStore& store, bool moved, const Figures* one,
                           const Bars& bars, Figures& out) {
  for (size_t s = 0; s < store.slots().size(); ++s) {
    const auto& [name, p, unit] = store.slots()[s].named;
    const at::Tensor& own = store.gradients().of(static_cast<int64_t>(s));
    if (one == nullptr) {
      out.gradients[name] = own.view(p->size).clone();
      continue;
    }
    if (moved && p->per_expert) continue;
    const OwnedRange range = store.owned(static_cast<int64_t>(s));
    const at::Tensor& whole = one->gradients.at(name);
    const at::Tensor same = box_of(whole, *p).reshape({-1}).narrow(0, range.from, range.size);
    EXPECT_EQ(own.numel(), range.size) << name;
    EXPECT_LT(worst(own, same, whole), bars.gradient) << "gradient of " << name;
  }
}

// The same of the values that the model reads.
inline void take_weights(Learner& learner, const Figures* one, const Bars& bars, Figures& out) {
  std::vector<int64_t> all;
  for (size_t b = 0; b < learner.store().buckets().size(); ++b) {
    all.push_back(static_cast<int64_t>(b));
  }
  learner.store().gather(all);
  learner.store().need(all);
  learner.model().for_each_param(-1, [&](const std::string& name, Param& p) {
    const at::Tensor value = p.value.detach().view(p.size);
    if (one == nullptr) {
      out.weights[name] = value.clone();
      return;
    }
    const at::Tensor& whole = one->weights.at(name);
    EXPECT_LT(worst(value, box_of(whole, p), whole), bars.weight) << name;
  });
}

// This rank's run of `steps` steps; compared with `one`, where that is given.
inline Figures figures_of(const ResolvedRun& recipe, const Text& text,
                          const std::shared_ptr<const ParallelSetup>& setup, int64_t steps,
                          const Figures* one) {
  const Faults none;
  const Bars bars = bars_of(recipe.train.precision);
  Learner learner(recipe, c10::kCPU, none, setup);
  TrainState state;
  Figures out;
  Interval interval;
  bool moved = false;  // by the last step
  for (int64_t step = 0; step < steps; ++step) {
    const StepReport report = learner.step(feed_of(recipe, text, *setup, step), state);
    out.loss.push_back(report.loss);
    out.mtp.push_back(report.mtp_loss);
    out.norm.push_back(report.grad_norm);
    out.aux.clear();
    for (const auto& [name, sum] : report.output.aux) out.aux[name] = sum.item<double>();
    interval.add(report, 0, 0);
    moved = !report.moved.empty();
  }
  take_gradients(learner.store(), moved, one, bars, out);
  interval.add_other_ranks(setup->state.sum_over_all(), moe_units(recipe.model), c10::kCPU);
  out.mean_aux = interval.aux();
  for (const LayerLoad& load : interval.loads()) out.counts.push_back(load.counts);
  out.made = generator_of(learner).generate({{1, 2, 3}, {4, 5}},
                                            {.sample = {.temperature = 0}, .max_tokens = 5});
  const int64_t count = setup->state.data_index() == 0 ? 3 : 0;
  out.evaluated = learner.evaluate(samples(text, 99, 0, count)).loss;
  out.evaluated_odd =
      learner.evaluate(samples({text.sequence - 5, text.packed}, 99, 0, count)).loss;
  require_equal_replicas(learner.store(), setup->state);
  take_weights(learner, one, bars, out);
  return out;
}

// A run over ranks that are threads is the run of one process.
inline void expect_one_process(const Recipe& recipe, const Text& text, int ranks, int64_t steps,
                               const Figures& one, const WorldOptions& how = {}) {
  const double bar = bars_of(recipe.train.precision).loss;
  std::mutex mutex;
  std::map<std::string, double> aux;
  double evaluated = 0, evaluated_odd = 0;
  testing::in_threads(ranks, how, [&](World& world) {
    at::set_num_threads(1);
    const ResolvedRun run = resolve(recipe, world);
    const auto rank =
        std::make_shared<ParallelSetup>(std::shared_ptr<World>(&world, [](World*) {}), run);
    const Figures own = figures_of(run, text, rank, steps, &one);
    for (size_t i = 0; i < one.loss.size(); ++i) {
      EXPECT_NEAR(own.loss[i], one.loss[i], bar * one.loss[i]) << "step " << i;
      EXPECT_NEAR(own.mtp[i], one.mtp[i], bar * one.mtp[i]) << "step " << i;
      EXPECT_NEAR(own.norm[i], one.norm[i], bar * one.norm[i]) << "step " << i;
    }
    EXPECT_EQ(own.counts, one.counts);
    EXPECT_EQ(own.made, one.made);
    EXPECT_EQ(own.mean_aux.size(), one.mean_aux.size());
    for (const auto& [name, value] : one.mean_aux) {
      EXPECT_NEAR(own.mean_aux.at(name), value, bar * value) << name;
    }
    const std::lock_guard lock(mutex);
    for (const auto& [name, value] : own.aux) aux[name] += value;
    if (rank->state.rank() == 0) {
      evaluated = own.evaluated;
      evaluated_odd = own.evaluated_odd;
    }
  });
  EXPECT_NEAR(evaluated, one.evaluated, bar * one.evaluated);
  EXPECT_NEAR(evaluated_odd, one.evaluated_odd, bar * one.evaluated_odd);
  for (const auto& [name, value] : one.aux) EXPECT_NEAR(aux[name], value, bar * value) << name;
}

}  // namespace troupe
