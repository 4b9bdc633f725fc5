// Chats in a model's own template, rendered by Python's jinja2 as the program itself has no Jinja:
// byte for byte what transformers' apply_chat_template gives. The interpreter is TROUPE_PYTHON, or
// python3.
#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "troupe/core/file/child_output.h"
#include "troupe/data/text/chat_line.h"
#include "troupe/data/tokenizer/chat_template.h"

namespace troupe {

struct ByteSpan {
  size_t begin = 0, end = 0;
};

struct RenderedChat {
  std::string text;
  std::vector<ByteSpan> learned;  // of `text`, what the assistant says
  std::string fault;              // not empty: why there is no text
};

enum class Wanted {
  kMasked,  // the chat, and what of it is learned
  kAnswer,  // the chat, of which all behind the prompt of a preference pair is learned
  kPrompt,  // the chat up to where the assistant begins to speak
  kClose    // what the template writes behind an assistant's last words
};

// A chat as ChatRenderers::render takes it, a line of JSON.
std::string chat_request(const ChatRow& row, Wanted wanted);

// Renders from any thread: each call has a Python process of its own while it runs, and there are
// never more processes than calls at one time. E3001 "FILE: ..." where Python or jinja2 is not
// there, a template is malformed, or a process ends.
class ChatRenderers {
 public:
  explicit ChatRenderers(ModelTemplate form);  // starts the first one

  std::vector<RenderedChat> render(const std::vector<std::string>& requests);

 private:
  using Child = std::unique_ptr<ChildOutput>;

  Child start() const;
  RenderedChat read_one(ChildOutput& child) const;
  [[noreturn]] void fail_of(ChildOutput& child) const;

  const ModelTemplate form_;
  std::mutex mutex_;
  std::vector<Child> idle_;
};

}  // namespace troupe
