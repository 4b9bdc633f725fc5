// What a model scores on text that it did not learn from: sets of documents, and questions with
// several answers.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/data/dataset.h"
#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/train/learner.h"

namespace troupe {

struct SetScore {
  double loss_sum = 0, weight = 0;  // over all targets that count
  int64_t bytes = 0;                // of the text that they spell; 0: no tokenizer

  double loss() const { return weight > 0 ? loss_sum / weight : 0; }  // a target's mean
  double perplexity() const;                                          // exp of it, at most e^20
  double bits_per_byte() const;                                       // 0: bytes are not known
};

struct SetOptions {
  int64_t rows = 1;     // samples of a batch
  int64_t batches = 0;  // of so many rows, of all ranks together; 0: the whole set, once
  const Tokenizer* tokenizer = nullptr;
  std::function<bool()> stop = {};  // asked before each turn; all ranks are told the same
};
// Each rank calls, and has the sums over all. The set is cut into batches in its order, the last
// of which may be smaller: no target counts twice, none is left out. Ranks take the batches in
// turns, one each, and read no other; in the last turn some may have none. So the batches are
// those of one process, whatever the number of ranks.
SetScore score_set(Learner& learner, const Dataset& set, const SetOptions& options);

struct Question {
  std::string query;
  std::vector<std::string> choices = {};
  int64_t gold = 0;
};
// A line of a JSONL file: {"query": "...", "choices": ["...", "..."], "gold": 0}; HellaSwag's names
// `ctx`, `endings` and `label` are read too. Throws E3106 with the place.
std::vector<Question> read_questions(const std::string& path);

// The answer with the largest log-likelihood after the query, as it is and divided by the answer's
// bytes, so that long answers are not at a loss. A blank parts query and answer where neither has
// one there.
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
