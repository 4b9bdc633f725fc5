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

ChatMessage message_of(JsonLine& line) {
  std::optional<std::string> role, content;
  if (line.kind() != Kind::kObject) line.fail("a message is not an object");
  line.object([&](std::string_view name) {
    if (name == "role") {
      role = line.string_of(name);
    } else if (name == "from") {
      role = role_of(line.string_of(name));
    } else if (name == "content" || name == "value") {
      content = content_of(line, name);
    } else {
      line.skip();
    }
  });
  if (!role || !content) line.fail("a message lacks \"role\" or \"content\"");
  return {.role = *std::move(role), .content = *std::move(content)};
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
    } else if (std::optional<std::string>* const text = text_named(name)) {
      *text = line.string_of(name);
    } else {
      line.skip();
    }
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

Messages read_chat(std::string_view text, const std::string& key) {
  JsonLine line(text);
  if (!key.empty()) {
    Messages out;
    line.only(key, [&] { out = messages_of(line, key); });
    return out;
  }
  if (line.kind() != Kind::kObject) line.fail("is not a JSON object");
  Found found;
  line.object([&](std::string_view name) { found.read(line, name); });
  line.end();
  std::optional<Messages> out = found.chosen();
  if (out) return *std::move(out);
  line.fail(
      "has no \"messages\", \"conversations\", \"prompt\" with \"completion\", or \"instruction\" "
      "with \"output\"");
}

}  // namespace troupe
