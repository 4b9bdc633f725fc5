// Multiple-choice questions from JSONL: {"query": "...", "choices": ["...", "..."], "gold": 0}, one
// a line. HellaSwag's names `ctx`, `endings` and `label` are read too.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct Question {
  std::string query;
  std::vector<std::string> choices = {};  // two at least, none empty
  int64_t gold = 0;                       // index of the right choice
};

// `place` names the text in messages: "PLACE:LINE: E3106 ...". Blank lines are skipped. Throws
// E3106 on a line that is no question, and where there is none.
std::vector<Question> parse_questions(const std::string& text, const std::string& place);
// The same of a file; "everyday" is the set that the program brings along
// (train/run/everyday_questions.h).
std::vector<Question> read_questions(const std::string& path);

}  // namespace troupe
