// A conversation of a corpus, one JSON object a line, in the layouts that people have:
//   {"messages": [{"role": "user", "content": "Hi"}, ...]}        OpenAI's, Hugging Face's
//   {"conversations": [{"from": "human", "value": "Hi"}, ...]}    ShareGPT's: human is user, gpt is
//                                                                 assistant
//   {"prompt": "1 + 2 =", "completion": " 3"}                     texts without marks, or two lists
//                                                                 of messages
//   {"instruction": "Add.", "input": "1 2", "output": "3"}        Alpaca's; "input" may lack, and
//                                                                 "system" be there
// Of an object with several of them the first in this order counts. A content is a string, or a list
// of {"type": "text", "text": ...}.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct ChatMessage {
  std::string role, content;
  bool has_marks = true;  // false: no text of a template around it
};

// With `key` the list under it alone. Throws JsonFault.
std::vector<ChatMessage> read_chat(std::string_view line, const std::string& key = {});

}  // namespace troupe
