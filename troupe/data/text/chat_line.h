// A conversation of a corpus, one JSON object a line, in the layouts that people have:
//   {"messages": [{"role": "user", "content": "Hi"}, ...]}        OpenAI's, Hugging Face's
//   {"conversations": [{"from": "human", "value": "Hi"}, ...]}    ShareGPT's: human is user, gpt is
//                                                                 assistant; "system" may be beside
//   {"prompt": "1 + 2 =", "completion": " 3"}                     texts without marks, or two lists
//                                                                 of messages
//   {"instruction": "Add.", "input": "1 2", "output": "3"}        Alpaca's; "input" may lack, and
//                                                                 "system" be there
// The keys say which one it is. An object with those of several is refused unless the layout is
// named; null is as if it were not there. A content is a string, or a list of {"type": "text",
// "text": ...}; beside "tool_calls" it may be null or absent.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

enum class ChatLayout { kAuto, kMessages, kShareGpt, kPromptCompletion, kAlpaca };
constexpr auto names_of(ChatLayout) {
  return std::array{Named{"auto", ChatLayout::kAuto}, Named{"messages", ChatLayout::kMessages},
                    Named{"sharegpt", ChatLayout::kShareGpt},
                    Named{"prompt-completion", ChatLayout::kPromptCompletion},
                    Named{"alpaca", ChatLayout::kAlpaca}};
}

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
  std::string tools;                      // the value under "tools", as JSON; empty: none
  std::string settings;                   // that under "chat_template_kwargs", likewise
  ChatLayout layout = ChatLayout::kAuto;  // in which it was; kAuto: the list under a key
};

// Where a line has its conversation.
struct ChatPlace {
  std::string key = {};                   // the list under it alone; empty: by the layout
  ChatLayout layout = ChatLayout::kAuto;  // kAuto: by the line's keys
};

// Throws JsonFault.
ChatRow read_chat(std::string_view line, const ChatPlace& place = {});

// The keys that make a layout, for messages: "prompt" with "completion".
std::string_view keys_of(ChatLayout layout);

}  // namespace troupe
