#include "troupe/data/text/chat_line.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "troupe/data/text/json_line.h"
#include "troupe/data/text/preference_pair.h"

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

constexpr std::array kLayouts{
    std::pair{ChatLayout::kMessages, "\"messages\""},
    std::pair{ChatLayout::kShareGpt, "\"conversations\""},
    std::pair{ChatLayout::kPromptCompletion, "\"prompt\" with \"completion\""},
    std::pair{ChatLayout::kAlpaca, "\"instruction\" with \"output\""},
    std::pair{ChatLayout::kPreference, "\"chosen\" with \"rejected\""}};

// What a line may hold; null is as if it were not there.
class Found {
 public:
  explicit Found(ChatLayout layout) : asked_(layout) {}

  void read(JsonLine& line, std::string_view name) {
    if (line.kind() == Kind::kOther || !wanted(name)) return line.skip();
    if (name == "messages") {
      messages_ = messages_of(line, name);
    } else if (name == "conversations") {
      conversations_ = messages_of(line, name);
    } else if (name == "prompt") {
      prompt_ = half_of(line, name);
    } else if (name == "completion") {
      completion_ = half_of(line, name);
    } else if (name == "chosen") {
      chosen_ = half_of(line, name);
    } else if (name == "rejected") {
      rejected_ = half_of(line, name);
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
    (name == "tools" ? tools_ : settings_) = raw_of(line);
    return true;
  }

  // In the layout that was asked for or the only one that is there.
  std::vector<ChatRow> rows(const JsonLine& line) {
    const ChatLayout layout = layout_of(line);
    if (layout != ChatLayout::kPreference) return {with_rest(taken(layout), layout)};
    PreferencePair pair =
        split_pair(line, std::move(prompt_), *std::move(chosen_), *std::move(rejected_));
    return {answered(pair.prompt, std::move(pair.chosen)),
            answered(pair.prompt, std::move(pair.rejected))};
  }
  ChatRow with_rest(Messages messages, ChatLayout layout) const {
    return {std::move(messages), tools_, settings_, layout};
  }

 private:
  // With a layout the keys of the others are not read: they may hold anything.
  bool wanted(std::string_view name) const {
    if (asked_ == ChatLayout::kAuto || name == "tools" || name == "chat_template_kwargs")
      return true;
    if (name == "input") return asked_ == ChatLayout::kAlpaca;
    if (name == "prompt" && asked_ == ChatLayout::kPreference) return true;
    if (name == "system") return asked_ == ChatLayout::kAlpaca || asked_ == ChatLayout::kShareGpt;
    std::string quoted = "\"";
    quoted.append(name).append("\"");
    return keys_of(asked_).find(quoted) != std::string_view::npos;
  }

  std::optional<std::string>* text_named(std::string_view name) {
    if (name == "system") return &system_;
    if (name == "instruction") return &instruction_;
    if (name == "input") return &input_;
    if (name == "output") return &output_;
    return nullptr;
  }

  bool has(ChatLayout layout) const {
    switch (layout) {
      case ChatLayout::kAuto: return false;
      case ChatLayout::kMessages: return messages_.has_value();
      case ChatLayout::kShareGpt: return conversations_.has_value();
      case ChatLayout::kPromptCompletion: return prompt_ && completion_;
      case ChatLayout::kAlpaca: return instruction_ && output_;
      case ChatLayout::kPreference: return chosen_ && rejected_;
    }
    return false;
  }

  ChatLayout layout_of(const JsonLine& line) const {
    std::vector<ChatLayout> there;
    for (const auto& [layout, keys] : kLayouts) {
      if (has(layout)) there.push_back(layout);
    }
    if (there.size() == 1) return there[0];
    if (there.empty()) line.fail(asked_ == ChatLayout::kAuto ? none_text() : lacks_text());
    line.fail("has the keys of several layouts, " + list_text(there, " and ") +
              ": name the one that is meant (--layout)");
  }

  static std::string list_text(const std::vector<ChatLayout>& layouts, const char* last) {
    std::string out;
    for (size_t i = 0; i < layouts.size(); ++i) {
      if (i > 0) out += i + 1 == layouts.size() ? last : ", ";
      out.append(to_text(layouts[i])).append(" (").append(keys_of(layouts[i])).append(")");
    }
    return out;
  }
  static std::string none_text() {
    std::string out = "has no ";
    for (size_t i = 0; i < kLayouts.size(); ++i) {
      if (i > 0) out += i + 1 == kLayouts.size() ? ", or " : ", ";
      out += kLayouts[i].second;
    }
    return out;
  }
  std::string lacks_text() const {
    std::string out = "has no ";
    out.append(keys_of(asked_)).append(", the keys of layout ").append(to_text(asked_));
    return out;
  }

  Messages taken(ChatLayout layout) {
    switch (layout) {
      case ChatLayout::kShareGpt: return with_system(*std::move(conversations_));
      case ChatLayout::kPromptCompletion: return joined();
      case ChatLayout::kAlpaca: return instructed();
      default: return *std::move(messages_);
    }
  }

  ChatRow answered(const Messages& prompt, Messages answer) const {
    Messages all = prompt;
    all.insert(all.end(), std::make_move_iterator(answer.begin()),
               std::make_move_iterator(answer.end()));
    ChatRow out = with_rest(std::move(all), ChatLayout::kPreference);
    out.answer = prompt.size();
    return out;
  }

  Messages with_system(Messages messages) const {
    const bool own = !messages.empty() && messages[0].role == "system";
    if (own || !system_ || system_->empty()) return messages;
    messages.insert(messages.begin(), ChatMessage{.role = "system", .content = *system_});
    return messages;
  }

  Messages joined() {
    Messages out = *std::move(prompt_);
    out.insert(out.end(), std::make_move_iterator(completion_->begin()),
               std::make_move_iterator(completion_->end()));
    return out;
  }

  Messages instructed() const {
    const bool alone = !input_ || input_->empty();
    return with_system(
        {{.role = "user", .content = *instruction_ + (alone ? "" : "\n\n" + *input_)},
         {.role = "assistant", .content = *output_}});
  }

  const ChatLayout asked_;
  std::optional<Messages> messages_, conversations_, prompt_, completion_, chosen_, rejected_;
  std::optional<std::string> system_, instruction_, input_, output_;
  std::string tools_, settings_;
};

}  // namespace

std::string_view keys_of(ChatLayout layout) {
  const auto found = std::ranges::find(kLayouts, layout, [](const auto& l) { return l.first; });
  return found == kLayouts.end() ? std::string_view() : found->second;
}

ChatRow read_chat(std::string_view text, const ChatPlace& place) {
  return read_chats(text, place)[0];
}

std::vector<ChatRow> read_chats(std::string_view text, const ChatPlace& place) {
  JsonLine line(text);
  Found found(place.layout);
  std::optional<Messages> messages;
  if (line.kind() != Kind::kObject) line.fail("is not a JSON object");
  line.object([&](std::string_view name) {
    if (place.key.empty()) {
      found.read(line, name);
    } else if (name == place.key) {
      messages = messages_of(line, place.key);
    } else if (!found.read_beside(line, name)) {
      line.skip();
    }
  });
  line.end();
  if (place.key.empty()) return found.rows(line);
  if (!messages) line.fail("has no \"" + place.key + "\"");
  return {found.with_rest(*std::move(messages), ChatLayout::kAuto)};
}

}  // namespace troupe
