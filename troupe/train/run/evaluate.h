// Evaluation on held-out text: validation sets and multiple-choice questions.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/data/tokens/dataset.h"
#include "troupe/train/run/questions.h"
#include "troupe/train/step/learner.h"

namespace troupe {

struct SetScore {
  double loss_sum = 0, weight = 0;  // over all unmasked targets, or preference pairs
  bool pairs = false;
  double chosen = 0, rejected = 0, right = 0;  // sums over pairs (ops/preference_loss.h)
  int64_t bytes = 0;                           // of their text; 0: no tokenizer

  double loss() const { return weight > 0 ? loss_sum / weight : 0; }  // mean per target
  PairRewards rewards() const;                                        // means over pairs
  double perplexity() const;                                          // exp of it, at most e^20
  double bits_per_byte() const;                                       // 0: bytes unknown
};

struct SetOptions {
  int64_t rows = 1;     // samples of a batch
  int64_t batches = 0;  // over all ranks; 0: the whole set, once
  const Tokenizer* tokenizer = nullptr;
  std::function<bool()> stop = {};  // asked before each turn; the same on all ranks
};
// A collective that returns the sums over all ranks. The set is cut into batches in order; the last
// may be smaller, so every target counts once. Ranks take batches in turns; in the last turn some
// have none. The batches do not depend on the number of ranks.
SetScore score_set(Learner& learner, const Dataset& set, const SetOptions& options);

// Accuracy of the answer with the largest log-likelihood after the query, raw and normalized by the
// answer's bytes. Query and answer are joined by a blank if neither has one there.
struct ChoiceScore {
  int64_t questions = 0, right = 0, right_normed = 0;
  double accuracy() const { return part(right); }
  double accuracy_normed() const { return part(right_normed); }

 private:
  double part(int64_t n) const {
    return questions == 0 ? 0 : static_cast<double>(n) / static_cast<double>(questions);
  }
};
ChoiceScore score_questions(Learner& learner, const Tokenizer& tokenizer,
                            const std::vector<Question>& questions, int64_t window);
// The log-likelihood of each choice of one question.
std::vector<double> choice_likelihoods(Learner& learner, const Tokenizer& tokenizer,
                                       const Question& question, int64_t window);

}  // namespace troupe
