// A small set of questions that the program brings along: forty beginnings of sentences about
// everyday things, four endings each, of which one makes sense. Our own, in no other data set. Its
// form is that of read_questions (train/run/evaluate.h). A model that knows no English gets a quarter.
#pragma once

#include <string_view>

namespace troupe {

inline constexpr std::string_view kEveryday = "everyday";  // what `troupe eval --tasks` calls it
std::string_view everyday_questions();                     // JSONL

}  // namespace troupe
