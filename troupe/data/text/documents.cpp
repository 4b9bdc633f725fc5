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

void add_chat(const ChatRow& row, const ChatTemplate& form, const Encode& encode,
              EncodedDocuments& out) {
  const std::vector<ChatMessage>& messages = row.messages;
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
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    const bool learn = message.role == form.learn && i >= row.answer.value_or(0);
    if (message.has_marks) add(opened(form, message.role), false);
    add(*message.content, learn);
    if (message.has_marks) add(form.close, learn);
  }
}

void add_chats(std::string_view text, const DocumentRules& rules, const Encode& encode,
               EncodedDocuments& out) {
  const std::vector<ChatRow> rows = chats_of(text, rules);
  const auto add = [&](size_t i) { add_chat(rows[i], rules.chat, encode, out); };
  add_documents(text, rules, rows.size(), add, out);
}

// A target is an id behind another.
void require_learned(const EncodedDocuments& out, size_t begin, bool chosen) {
  const auto from =
      out.weights.begin() + static_cast<std::ptrdiff_t>(std::min(begin + 1, out.weights.size()));
  if (std::find(from, out.weights.end(), uint8_t{1}) != out.weights.end()) return;
  throw std::string(chosen ? "\"chosen\"" : "\"rejected\"") +
      " has nothing that is learned behind the prompt: no message of the assistant (data build "
      "--learn), or no token";
}

void add_text(std::string_view text, const DocumentRules& rules, const Encode& encode,
              EncodedDocuments& out) {
  switch (rules.format) {
    case CorpusFormat::kAuto: break;
    case CorpusFormat::kText:
    case CorpusFormat::kLines: return encode(text, out.ids);
    case CorpusFormat::kJsonl: return encode(read_text(text, rules.key), out.ids);
    case CorpusFormat::kChat: break;
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
    if (rules.format == CorpusFormat::kChat) return add_chats(text, rules, encode, out);
    add_text(text, rules, encode, out);
  } catch (const JsonFault& fault) {
    throw "at byte " + std::to_string(fault.offset) + ": " + fault.what;
  }
  end_document(text, rules, begin, out);
}

std::vector<ChatRow> chats_of(std::string_view text, const DocumentRules& rules) {
  std::vector<ChatRow> out = read_chats(text, {.key = rules.key, .layout = rules.layout});
  const bool pair = out.size() > 1;
  if (rules.pairs.value_or(pair) == pair) return out;
  throw std::string(pair ? "is a preference pair, and the first chat is none: build pairs apart"
                         : "is no preference pair, and the first chat is one: build pairs apart");
}

void add_documents(std::string_view text, const DocumentRules& rules, size_t count,
                   const std::function<void(size_t i)>& add, EncodedDocuments& out) {
  const size_t ids = out.ids.size(), weights = out.weights.size(), ends = out.ends.size(),
               held_out = out.held_out.size();
  try {
    for (size_t i = 0; i < count; ++i) {
      const size_t begin = out.ids.size();
      add(i);
      end_document(text, rules, begin, out);
      if (count > 1 && rules.pairs) require_learned(out, begin, i == 0);
    }
  } catch (...) {
    out.ids.resize(ids);
    out.weights.resize(weights);
    out.ends.resize(ends);
    out.held_out.resize(held_out);
    throw;
  }
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
