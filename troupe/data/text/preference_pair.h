// The prompt of a preference pair and its two answers, out of the forms of chat_line.h.
#pragma once

#include <optional>
#include <vector>

#include "troupe/data/text/chat_line.h"
#include "troupe/data/text/json_line.h"

namespace troupe {

struct PreferencePair {
  std::vector<ChatMessage> prompt, chosen, rejected;  // the answers without the prompt
};

// A text is one message without marks. Throws JsonFault, at `line`'s place, where one of the three
// is a text and another a list, where an answer is empty, and where both answers are the same.
PreferencePair split_pair(const JsonLine& line, std::optional<std::vector<ChatMessage>> prompt,
                          std::vector<ChatMessage> chosen, std::vector<ChatMessage> rejected);

}  // namespace troupe
