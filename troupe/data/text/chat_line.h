// A conversation of a corpus, one JSON object a line, in the layouts that people have:
//   {"messages": [{"role": "user", "content": "Hi"}, ...]}        OpenAI's, Hugging Face's
//   {"conversations": [{"from": "human", "value": "Hi"}, ...]}    ShareGPT's: human is user, gpt is
//                                                                 assistant; "system" may be beside
//   {"prompt": "1 + 2 =", "completion": " 3"}                     texts without marks, or two lists
//                                                                 of messages
//   {"instruction": "Add.", "input": "1 2", "output": "3"}        Alpaca's; "input" may lack, and
//                                                                 "system" be there
//   {"prompt": "1 + 2 =", "chosen": " 3", "rejected": " 4"}       a preference pair (TRL's): texts
//                                                                 without marks, or lists of messages
// Of a pair chosen and rejected may hold the prompt. Lists of messages may begin with those of
// "prompt"; beside a text in "prompt", or without one, the prompt is what both lists begin with. Of
// two texts without "prompt" it is the text that both begin with, without a space at its end.
// The keys say which one it is. An object with those of several is refused unless the layout is
// named; null is as if it were not there. A content is a string, or a list of {"type": "text",
// "text": ...}; beside "tool_calls" it may be null or absent.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/text/text.h"

namespace troupe {

enum class ChatLayout { kAuto, kMessages, kShareGpt, kPromptCompletion, kAlpaca, kPreference };
constexpr auto names_of(ChatLayout) {
  return std::array{Named{"auto", ChatLayout::kAuto},
                    Named{"messages", ChatLayout::kMessages},
                    Named{"sharegpt", ChatLayout::kShareGpt},
                    Named{"prompt-completion", ChatLayout::kPromptCompletion},
                    Named{"alpaca", ChatLayout::kAlpaca},
                    Named{"preference", ChatLayout::kPreference}};
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
  // Of a preference pair: the message with which the answer begins, behind those of the prompt.
  std::optional<size_t> answer = {};
};

// Where a line has its conversation.
struct ChatPlace {
  std::string key = {};                   // the list under it alone; empty: by the layout
  ChatLayout layout = ChatLayout::kAuto;  // kAuto: by the line's keys
};

// The conversation of a line; of a preference pair two, the chosen one first. Throws JsonFault.
std::vector<ChatRow> read_chats(std::string_view line, const ChatPlace& place = {});
// The first of them.
ChatRow read_chat(std::string_view line, const ChatPlace& place = {});

// The keys that make a layout, for messages: "prompt" with "completion".
std::string_view keys_of(ChatLayout layout);

}  // namespace troupe
