#include "apps/models/measure_experts.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace troupe {
namespace {

using Counts = std::vector<int64_t>;  // of each expert

int64_t sum_of(const Counts& n) {
  return std::accumulate(n.begin(), n.end(), int64_t{0});
}

// f(place, row, token) for each token that is no padding.
template <class F>
void for_each_token(const TokenBatch& batch, const F& f) {
  for (int64_t t = 0; t < batch.B * batch.S; ++t) {
    if (batch.documents[static_cast<size_t>(t)] < 0) continue;
    const int64_t row = t / batch.S;
    f(t, static_cast<size_t>(row), batch.row(row)[static_cast<size_t>(t % batch.S)]);
  }
}

struct LayerCounts {
  std::vector<Counts> by_source;
  std::map<int32_t, Counts> by_token;
};

// A forward pass over a batch, its choices added to those of their tokens.
class ChoiceCounter {
 public:
  ChoiceCounter(Learner& learner, int64_t sources)
      : learner_(learner),
        sources_(static_cast<size_t>(sources)),
        experts_(static_cast<size_t>(learner.model().config().moe.experts)) {}

  void add(const TokenBatch& batch) {
    const at::NoGradGuard no_grad;
    const Feed feed = make_feed(batch, std::max<int64_t>(batch.B, 1), learner_.device(), 1);
    const int64_t last = learner_.model().num_units() - 1;
    const Batch& micro = feed.microbatches[0];
    learner_.through_units({micro.ids_BS.numel()}, [&](int64_t unit, int64_t, const at::Tensor& h) {
      if (unit == last) return at::Tensor();
      UnitResult r = learner_.model().forward(unit, h, micro, {});
      for (const LayerChoices& c : r.choices) add(batch, c);
      return r.h;
    });
  }

  std::map<int64_t, LayerCounts> layers;
  std::map<int32_t, int64_t> seen;

 private:
  void add(const TokenBatch& batch, const LayerChoices& choices) {
    LayerCounts& of = layers[choices.layer];
    of.by_source.resize(sources_, Counts(experts_));
    const at::Tensor host = choices.ids_TK.cpu().contiguous();
    const int64_t K = host.size(1);
    const auto* ids = host.const_data_ptr<int32_t>();
    for_each_token(batch, [&](int64_t t, size_t row, int32_t token) {
      Counts& of_token = of.by_token.try_emplace(token, Counts(experts_)).first->second;
      Counts& of_source = of.by_source[static_cast<size_t>(batch.sources[row])];
      for (int64_t k = 0; k < K; ++k) {
        const int32_t expert = ids[t * K + k];
        if (expert < 0) continue;
        ++of_token[static_cast<size_t>(expert)];
        ++of_source[static_cast<size_t>(expert)];
      }
    });
  }

  Learner& learner_;
  const size_t sources_, experts_;
};

double times_even(int64_t n, int64_t all, size_t experts) {
  return all == 0
             ? 0
             : static_cast<double>(n) * static_cast<double>(experts) / static_cast<double>(all);
}

std::vector<ExpertUse::Token> typical(const LayerCounts& layer, size_t expert,
                                      const std::map<int32_t, int64_t>& seen,
                                      const Tokenizer* tokenizer, const MeasureExperts& options) {
  std::vector<ExpertUse::Token> out;
  for (const auto& [token, n] : layer.by_token) {
    const int64_t all = sum_of(n);
    if (all == 0 || n[expert] == 0 || seen.at(token) < options.seen) continue;
    out.push_back({.id = token,
                   .text = {},
                   .part = static_cast<double>(n[expert]) / static_cast<double>(all),
                   .seen = seen.at(token)});
  }
  const auto before = [](const ExpertUse::Token& a, const ExpertUse::Token& b) {
    return a.part > b.part || (a.part == b.part && a.seen > b.seen);
  };
  std::ranges::stable_sort(out, before);
  if (std::ssize(out) > options.tokens) out.resize(static_cast<size_t>(options.tokens));
  for (ExpertUse::Token& token : out) {
    if (tokenizer != nullptr)
      token.text = tokenizer->decode(std::vector{static_cast<TokenId>(token.id)});
  }
  return out;
}

}  // namespace

ExpertUse measure_experts(Learner& learner, const Dataset& set, const Tokenizer* tokenizer,
                          const MeasureExperts& options) {
  const std::vector<SourceUse> uses = set.uses(0);
  ChoiceCounter count(learner, std::ssize(uses));
  ExpertUse out;
  for (const SourceUse& use : uses) out.sources.push_back({.name = use.name});
  const int64_t samples = std::min(options.samples, set.size());
  for (int64_t first = 0; first < samples; first += options.rows) {
    const TokenBatch batch = set.batch(first, std::min(options.rows, samples - first));
    count.add(batch);
    for_each_token(batch, [&](int64_t, size_t row, int32_t token) {
      ++count.seen[token];
      ++out.sources[static_cast<size_t>(batch.sources[row])].tokens;
    });
  }
  for (const auto& [number, counts] : count.layers) {
    ExpertUse::Layer& layer = out.layers.emplace_back(ExpertUse::Layer{
        .layer = number, .bits = information_bits(counts.by_source), .experts = {}});
    const size_t E = counts.by_source[0].size();
    int64_t all = 0;
    for (const Counts& n : counts.by_source) all += sum_of(n);
    for (size_t e = 0; e < E; ++e) {
      ExpertUse::Expert& expert = layer.experts.emplace_back();
      int64_t chosen = 0;
      for (const Counts& n : counts.by_source) {
        expert.shares.push_back(times_even(n[e], sum_of(n), E));
        chosen += n[e];
      }
      expert.share = times_even(chosen, all, E);
      expert.tokens = typical(counts, e, count.seen, tokenizer, options);
    }
  }
  return out;
}

}  // namespace troupe
