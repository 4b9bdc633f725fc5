#include "troupe/data/text/documents.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/data/text/json_line.h"

namespace troupe {
namespace {

std::string read_text(std::string_view text, const std::string& key) {
  JsonLine line(text);
  std::string out;
  line.only(key, [&] { out = line.string_of(key); });
  return out;
}

void add_chat(const std::vector<ChatMessage>& messages, const ChatTemplate& form,
              const Encode& encode, EncodedDocuments& out) {
  const auto add = [&](const std::string& text, bool learn) {
    encode(text, out.ids);
    out.weights.resize(out.ids.size(), learn);
  };
  const auto lacks = [](const ChatMessage& message) { return !message.content; };
  if (std::ranges::any_of(messages, lacks)) {
    throw std::string(
        "a message calls tools and has no content: a model's own template can write it "
        "(--template)");
  }
  for (const ChatMessage& message : messages) {
    const bool learn = message.role == form.learn;
    if (message.has_marks) add(opened(form, message.role), false);
    add(*message.content, learn);
    if (message.has_marks) add(form.close, learn);
  }
}

void add_text(std::string_view text, const DocumentRules& rules, const Encode& encode,
              EncodedDocuments& out) {
  switch (rules.format) {
    case CorpusFormat::kAuto: break;
    case CorpusFormat::kText:
    case CorpusFormat::kLines: return encode(text, out.ids);
    case CorpusFormat::kJsonl: return encode(read_text(text, rules.key), out.ids);
    case CorpusFormat::kChat: {
      const ChatRow row = read_chat(text, {.key = rules.key, .layout = rules.layout});
      return add_chat(row.messages, rules.chat, encode, out);
    }
  }
  TROUPE_CHECK(false, "the format is not settled");
}

}  // namespace

std::string opened(const ChatTemplate& form, const std::string& role) {
  constexpr std::string_view kMark = "{role}";
  std::string text = form.open;
  const size_t at = text.find(kMark);
  return at == std::string::npos ? text : text.replace(at, kMark.size(), role);
}

bool is_held_out(std::string_view text, double part) {
  return static_cast<double>(hash64(text)) * 0x1p-64 < part;
}

void add_document(std::string_view text, const DocumentRules& rules, const Encode& encode,
                  EncodedDocuments& out) {
  const size_t begin = out.ids.size();
  try {
    add_text(text, rules, encode, out);
  } catch (const JsonFault& fault) {
    throw "at byte " + std::to_string(fault.offset) + ": " + fault.what;
  }
  end_document(text, rules, begin, out);
}

void end_document(std::string_view text, const DocumentRules& rules, size_t begin,
                  EncodedDocuments& out) {
  const bool weighted = rules.format == CorpusFormat::kChat;
  if (rules.eod && out.ids.size() > begin) {
    out.ids.push_back(*rules.eod);
    if (weighted) out.weights.push_back(out.weights.back());
  }
  out.ends.push_back(std::ssize(out.ids));
  if (rules.held_out > 0) out.held_out.push_back(is_held_out(text, rules.held_out));
}

}  // namespace troupe
