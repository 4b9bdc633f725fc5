// The Python program that renders chats with Jinja, as transformers does.
#pragma once

namespace troupe {

// It reads lines of JSON and writes lines of JSON. First {"templates": [{"name", "text"}], "chosen",
// "tokens": [{"name", "text"}]}, of which it says "ready"; then batches: a line with a number, and so
// many chats, {"want", "messages", "tools", "settings"}, of which it writes as many lines:
//   want "masked": {"text", "learned": [begin, end, ...]}, in bytes of its UTF-8: what the template's
//                  {% generation %} blocks mark, else what follows the prompt of each assistant's turn
//   want "prompt": {"text"}, which ends where the assistant begins to speak
//   want "close":  {"text"}, what the template writes behind the words of an assistant's last turn
// or {"fault"}. What it cannot begin with it says on its standard error, and ends.
extern const char* const kChatScript;

}  // namespace troupe
