#include "troupe/data/text/chat_line.h"

#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "troupe/data/text/json_line.h"

namespace troupe {
namespace {

using Kind = JsonLine::Kind;
using Messages = std::vector<ChatMessage>;

// A part of a content: {"type": "text", "text": ...}.
std::string part_of(JsonLine& line) {
  std::string type = "text", text;
  if (line.kind() != Kind::kObject) line.fail("a part of a content is not an object");
  line.object([&](std::string_view name) {
    if (name == "type") {
      type = line.string_of(name);
    } else if (name == "text") {
      text = line.string_of(name);
    } else {
      line.skip();
    }
  });
  if (type != "text") line.fail("a part of a content is " + type + " and not text");
  return text;
}

std::string content_of(JsonLine& line, std::string_view name) {
  if (line.kind() != Kind::kArray) return line.string_of(name);
  std::string out;
  line.array([&] { out += part_of(line); });
  return out;
}

// ShareGPT's names for who speaks.
std::string role_of(std::string from) {
  constexpr std::array kRoles{std::pair{"human", "user"}, std::pair{"gpt", "assistant"},
                              std::pair{"chatgpt", "assistant"}, std::pair{"bing", "assistant"},
                              std::pair{"bard", "assistant"}};
  for (const auto& [name, role] : kRoles) {
    if (from == name) return role;
  }
  return from;
}

// The value that comes, as it is written; nothing for null.
std::string raw_of(JsonLine& line) {
  const size_t begin = line.place();
  line.skip();
  std::string out(line.since(begin));
  return out == "null" ? std::string() : out;
}

// A message as its fields come.
struct MessageFields {
  std::optional<std::string> role, content;
  bool usual_names = true, null_content = false, has_calls = false;

  void read(JsonLine& line, std::string_view name) {
    usual_names &= name != "from" && name != "value";
    if (name == "role") {
      role = line.string_of(name);
    } else if (name == "from") {
      role = role_of(line.string_of(name));
    } else if (name == "content" || name == "value") {
      read_content(line, name);
    } else if (name == "tool_calls") {
      has_calls = !raw_of(line).empty();
    } else {
      line.skip();
    }
  }

  void read_content(JsonLine& line, std::string_view name) {
    content.reset();
    null_content = line.is_null();
    if (null_content) return line.skip();
    content = content_of(line, name);
  }
};

ChatMessage message_of(JsonLine& line) {
  if (line.kind() != Kind::kObject) line.fail("a message is not an object");
  MessageFields fields;
  const size_t begin = line.place();
  line.object([&](std::string_view name) { fields.read(line, name); });
  if (fields.null_content && !fields.has_calls) line.fail("\"content\" is not a string");
  if (!fields.role || (!fields.content && !fields.has_calls)) {
    line.fail("a message lacks \"role\" or \"content\"");
  }
  ChatMessage out{.role = *std::move(fields.role), .content = std::move(fields.content)};
  if (fields.usual_names) out.json = line.since(begin);
  return out;
}

Messages messages_of(JsonLine& line, std::string_view name) {
  if (line.kind() != Kind::kArray) line.fail("\"" + std::string(name) + "\" is not a list");
  Messages out;
  line.array([&] { out.push_back(message_of(line)); });
  return out;
}

// A half of a prompt with its completion: a text, or messages.
Messages half_of(JsonLine& line, std::string_view name) {
  if (line.kind() == Kind::kArray) return messages_of(line, name);
  return {{.role = name == "prompt" ? "user" : "assistant",
           .content = line.string_of(name),
           .has_marks = false}};
}

// What a line may hold; null is as if it were not there.
struct Found {
  std::optional<Messages> messages, conversations, prompt, completion;
  std::optional<std::string> system, instruction, input, output;
  std::string tools, settings;

  void read(JsonLine& line, std::string_view name) {
    if (line.kind() == Kind::kOther) return line.skip();
    if (name == "messages") {
      messages = messages_of(line, name);
    } else if (name == "conversations") {
      conversations = messages_of(line, name);
    } else if (name == "prompt") {
      prompt = half_of(line, name);
    } else if (name == "completion") {
      completion = half_of(line, name);
    } else if (read_beside(line, name)) {
      return;
    } else if (std::optional<std::string>* const text = text_named(name)) {
      *text = line.string_of(name);
    } else {
      line.skip();
    }
  }

  bool read_beside(JsonLine& line, std::string_view name) {
    if (name != "tools" && name != "chat_template_kwargs") return false;
    (name == "tools" ? tools : settings) = raw_of(line);
    return true;
  }

  std::optional<std::string>* text_named(std::string_view name) {
    if (name == "system") return &system;
    if (name == "instruction") return &instruction;
    if (name == "input") return &input;
    if (name == "output") return &output;
    return nullptr;
  }

  std::optional<Messages> chosen() {
    if (messages) return messages;
    if (conversations) return conversations;
    if (prompt && completion) {
      prompt->insert(prompt->end(), std::make_move_iterator(completion->begin()),
                     std::make_move_iterator(completion->end()));
      return prompt;
    }
    if (!instruction || !output) return std::nullopt;
    Messages out;
    if (system && !system->empty()) out.push_back({.role = "system", .content = *system});
    const bool alone = !input || input->empty();
    out.push_back({.role = "user", .content = *instruction + (alone ? "" : "\n\n" + *input)});
    out.push_back({.role = "assistant", .content = *output});
    return out;
  }
};

}  // namespace

ChatRow read_chat(std::string_view text, const std::string& key) {
  JsonLine line(text);
  Found found;
  std::optional<Messages> messages;
  if (line.kind() != Kind::kObject) line.fail("is not a JSON object");
  line.object([&](std::string_view name) {
    if (key.empty()) {
      found.read(line, name);
    } else if (name == key) {
      messages = messages_of(line, key);
    } else if (!found.read_beside(line, name)) {
      line.skip();
    }
  });
  line.end();
  if (key.empty()) messages = found.chosen();
  if (messages) return {*std::move(messages), std::move(found.tools), std::move(found.settings)};
  if (!key.empty()) line.fail("has no \"" + key + "\"");
  line.fail(
      "has no \"messages\", \"conversations\", \"prompt\" with \"completion\", or \"instruction\" "
      "with \"output\"");
}

}  // namespace troupe
