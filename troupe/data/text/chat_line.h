// A conversation of a corpus, one JSON object a line, in the layouts that people have:
//   {"messages": [{"role": "user", "content": "Hi"}, ...]}        OpenAI's, Hugging Face's
//   {"conversations": [{"from": "human", "value": "Hi"}, ...]}    ShareGPT's: human is user, gpt is
//                                                                 assistant
//   {"prompt": "1 + 2 =", "completion": " 3"}                     texts without marks, or two lists
//                                                                 of messages
//   {"instruction": "Add.", "input": "1 2", "output": "3"}        Alpaca's; "input" may lack, and
//                                                                 "system" be there
// Of an object with several of them the first in this order counts. A content is a string, or a list
// of {"type": "text", "text": ...}; beside "tool_calls" it may be null or absent.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct ChatMessage {
  std::string role;
  std::optional<std::string> content;  // nothing: the message calls tools alone
  bool has_marks = true;               // false: no text of a template around it
  // The message as the line has it, with whatever else it holds; empty where its names are not
  // "role" and "content", and of other layouts.
  std::string json = {};
};

// A conversation and what a model's own template (chat_renderer.h) is given beside it.
struct ChatRow {
  std::vector<ChatMessage> messages;
  std::string tools;     // the value under "tools", as JSON; empty: none
  std::string settings;  // that under "chat_template_kwargs", likewise
};

// With `key` the list under it alone. Throws JsonFault.
ChatRow read_chat(std::string_view line, const std::string& key = {});

}  // namespace troupe
