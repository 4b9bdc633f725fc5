#include "troupe/train/run/questions.h"

#include <algorithm>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/train/run/everyday_questions.h"

namespace troupe {
namespace {

// The value under one of two names, or null where the line has neither. Both at once say two
// things.
const Yaml* value_of(const Yaml& line, const char* ours, const char* hellaswag) {
  const Yaml* found = nullptr;
  for (const Yaml::Field& field : line.fields) {
    if (field.name != ours && field.name != hellaswag) continue;
    if (found != nullptr) {
      fail(Code::kBadDocument, to_text(line.where), "has both", ours, "and", hellaswag);
    }
    found = &field.value;
  }
  return found;
}

Question question_of(const Yaml& line) {
  const std::string place = to_text(line.where);
  Question out{.query = "", .gold = -1};
  const Yaml* query = value_of(line, "query", "ctx");
  if (query == nullptr || query->kind != Yaml::Kind::kScalar) {
    fail(Code::kBadDocument, place, "needs `query`, a string (\"\" where there is none)");
  }
  out.query = query->text;
  if (const Yaml* choices = value_of(line, "choices", "endings"); choices != nullptr) {
    for (const Yaml& item : choices->items) out.choices.push_back(item.text);
  }
  if (out.choices.size() < 2) {
    fail(Code::kBadDocument, place, "needs `choices`, at least two strings; it has",
         out.choices.size());
  }
  if (std::any_of(out.choices.begin(), out.choices.end(),
                  [](const std::string& choice) { return choice.empty(); })) {
    fail(Code::kBadDocument, place, "has an empty choice");
  }
  const Yaml* gold = value_of(line, "gold", "label");
  const auto count = static_cast<int64_t>(out.choices.size());
  if (gold == nullptr || !from_text(gold->text, out.gold) || out.gold < 0 || out.gold >= count) {
    fail(Code::kBadDocument, place, "needs `gold`, the number of one of the", count,
         "choices, from 0; it is", gold == nullptr ? "absent" : "\"" + gold->text + "\"");
  }
  return out;
}

}  // namespace

std::vector<Question> parse_questions(const std::string& text, const std::string& place) {
  std::istringstream lines(text);
  std::vector<Question> out;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const std::string at = place + ":" + std::to_string(number);
    out.push_back(question_of(parse_json(line, at, Code::kBadDocument)));
  }
  if (out.empty()) fail(Code::kBadDocument, place, "has no questions");
  return out;
}

std::vector<Question> read_questions(const std::string& path) {
  return parse_questions(path == kEveryday ? std::string(everyday_questions()) : read_file(path),
                         path);
}

}  // namespace troupe
