// Any bytes as a file of questions for `troupe eval --tasks`: questions that can be scored, or an
// Error of the class of data. The same with one of its numbers made large.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/fuzz/large_number.h"
#include "troupe/core/check.h"
#include "troupe/train/run/questions.h"

namespace {

void look_at(const std::string& text) {
  try {
    const auto questions = troupe::parse_questions(text, "fuzz.jsonl");
    if (questions.empty()) std::abort();
    for (const troupe::Question& q : questions) {
      if (q.choices.size() < 2 || q.gold < 0 || q.gold >= std::ssize(q.choices)) std::abort();
      for (const std::string& choice : q.choices) {
        if (choice.empty()) std::abort();
      }
    }
  } catch (const troupe::Error& e) {
    if (e.exit_class() != troupe::ExitClass::kData) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  look_at(text);
  look_at(with_large_number(text));
  return 0;
}
