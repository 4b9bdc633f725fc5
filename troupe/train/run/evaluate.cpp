#include "troupe/train/run/evaluate.h"

#include <algorithm>
#include <cmath>

#include "troupe/core/stop.h"

namespace troupe {
namespace {

int64_t label_bytes(const Tokenizer& tokenizer, const TokenBatch& batch) {
  std::vector<TokenId> ids;
  for (int64_t b = 0; b < batch.B; ++b) {
    for (int64_t s = 0; s < batch.S; ++s) {
      const auto at = static_cast<size_t>(b * batch.S + s);
      if (batch.weights[at] != 0) ids.push_back(batch.row(b)[static_cast<size_t>(s) + 1]);
    }
  }
  return static_cast<int64_t>(tokenizer.decode(ids, {.skip_special = true}).size());
}

bool is_blank(char c) {
  return c == ' ' || c == '\n' || c == '\t';
}

// One sample whose targets count from `first` on.
TokenBatch sample_of(const std::vector<TokenId>& ids, size_t first) {
  TokenBatch out{.B = 1, .S = static_cast<int64_t>(ids.size()) - 1};
  out.ids = ids;
  for (size_t i = 0; i + 1 < ids.size(); ++i) {
    out.documents.push_back(0);
    out.positions.push_back(static_cast<int32_t>(i));
    out.weights.push_back(i + 1 >= first ? 1.0F : 0.0F);
  }
  out.sources = {0};
  return out;
}

// Asked to stop while a server is waited for, a rank goes with the others to where all ask for it.
TokenBatch read_batch(const Dataset& set, int64_t first, int64_t count) {
  try {
    return set.batch(first, count);
  } catch (const AskedToStop&) {
    return set.batch(first, 0);
  }
}

}  // namespace

PairRewards SetScore::rewards() const {
  const double all = weight > 0 ? weight : 1;
  return {.chosen = chosen / all, .rejected = rejected / all, .accuracy = right / all};
}

double SetScore::perplexity() const {
  return std::exp(std::min(20.0, loss()));
}

double SetScore::bits_per_byte() const {
  return bytes == 0 ? 0 : loss_sum / std::log(2.0) / static_cast<double>(bytes);
}

SetScore score_set(Learner& learner, const Dataset& set, const SetOptions& options) {
  const ParallelState& parallel = learner.parallel();
  const int64_t all = set.samples_per_epoch(), rows = options.rows;
  const int64_t samples = options.batches > 0 ? std::min(all, options.batches * rows) : all;
  SetScore own;
  for (int64_t turn = 0; turn < samples; turn += rows * parallel.data_ranks()) {
    if (options.stop && options.stop()) break;
    const int64_t first = std::min(samples, turn + rows * parallel.data_index());
    const TokenBatch batch = read_batch(set, first, std::min(rows, samples - first));
    const Learner::PairSums part =
        set.pairs() ? learner.evaluate_pairs(batch) : Learner::PairSums{learner.evaluate(batch)};
    own.loss_sum += part.loss;
    own.weight += part.weight;
    own.chosen += part.chosen;
    own.rejected += part.rejected;
    own.right += part.right;
    if (!set.pairs() && options.tokenizer != nullptr)
      own.bytes += label_bytes(*options.tokenizer, batch);
  }
  const double once = parallel.first_of_replica() ? 1 : 0;
  const std::vector<double> sums = parallel.all_reduce(
      {once * own.loss_sum, once * own.weight, once * static_cast<double>(own.bytes),
       once * own.chosen, once * own.rejected, once * own.right});
  return {.loss_sum = sums[0],
          .weight = sums[1],
          .pairs = set.pairs(),
          .chosen = sums[3],
          .rejected = sums[4],
          .right = sums[5],
          .bytes = static_cast<int64_t>(sums[2])};
}

std::vector<double> choice_likelihoods(Learner& learner, const Tokenizer& tokenizer,
                                       const Question& question, int64_t window) {
  std::vector<TokenId> context = tokenizer.encode(question.query);
  std::vector<double> out;
  for (const std::string& choice : question.choices) {
    const bool parted =
        question.query.empty() || is_blank(question.query.back()) || is_blank(choice.front());
    std::string whole = question.query;
    if (!parted) whole += ' ';
    std::vector<TokenId> ids = tokenizer.encode(whole.append(choice));
    // Where the ids part: a token may reach over the end of the query.
    const auto [a, b] = std::mismatch(context.begin(), context.end(), ids.begin(), ids.end());
    size_t first = static_cast<size_t>(a - context.begin());
    if (first == 0) {  // the first id has nothing before it that could foretell it
      ids.insert(ids.begin(), std::max<TokenId>(tokenizer.special().bos, 0));
      first = 1;
    }
    const size_t most = static_cast<size_t>(window) + 1;
    if (ids.size() > most) {
      const size_t cut = ids.size() - most;
      ids.erase(ids.begin(), ids.begin() + static_cast<int64_t>(cut));
      first = first > cut ? first - cut : 1;
    }
    out.push_back(-learner.evaluate(sample_of(ids, first)).loss);
  }
  return out;
}

ChoiceScore score_questions(Learner& learner, const Tokenizer& tokenizer,
                            const std::vector<Question>& questions, int64_t window) {
  ChoiceScore out;
  for (const Question& q : questions) {
    std::vector<double> sums = choice_likelihoods(learner, tokenizer, q, window);
    const auto best = [&] { return std::max_element(sums.begin(), sums.end()) - sums.begin(); };
    ++out.questions;
    out.right += best() == q.gold;
    for (size_t i = 0; i < sums.size(); ++i) sums[i] /= static_cast<double>(q.choices[i].size());
    out.right_normed += best() == q.gold;
  }
  return out;
}

}  // namespace troupe
