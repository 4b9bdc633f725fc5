// Text to documents of ids: what a line or a file of a corpus means.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/data/text/chat_line.h"

namespace troupe {

// Appends the ids of a text. Several threads call it at once.
using Encode = std::function<void(std::string_view text, std::vector<int32_t>& ids)>;

enum class CorpusFormat {
  kAuto,   // by the file's name: .jsonl, .json and tables are jsonl, all else text
  kText,   // a file is a document
  kLines,  // each line that is not empty is a document
  kJsonl,  // each line, or row, is an object; the string under `key` is a document
  kChat,   // each line, or row, is a conversation (chat_line.h); its list is under `key`
};
constexpr auto names_of(CorpusFormat) {
  return std::array{Named{"auto", CorpusFormat::kAuto}, Named{"text", CorpusFormat::kText},
                    Named{"lines", CorpusFormat::kLines}, Named{"jsonl", CorpusFormat::kJsonl},
                    Named{"chat", CorpusFormat::kChat}};
}

// A conversation as text: for each message `open` with {role} replaced, its content, `close`. What
// the `learn` role says is learned, `close` behind it too; all else is context. The three parts are
// encoded one by one, so that no id belongs to two of them.
struct ChatTemplate {
  std::string open = "<|im_start|>{role}\n";
  std::string close = "<|im_end|>\n";
  std::string learn = "assistant";
  static void visit(auto& c, auto&& f) {
    f("open", c.open);
    f("close", c.close);
    f("learn", c.learn);
  }
  bool operator==(const ChatTemplate&) const = default;
};

std::string opened(const ChatTemplate& form,
                   const std::string& role);  // `open`, its {role} replaced

struct DocumentRules {
  CorpusFormat format = CorpusFormat::kJsonl;  // kAuto: each piece says its own
  std::string key = "text";                    // of chats may be empty: the line's layout says
  ChatLayout layout = ChatLayout::kAuto;       // of chats
  // Whether each chat is a preference pair, two documents, of which only answers are learned; absent:
  // any may be.
  std::optional<bool> pairs = {};
  std::optional<int32_t> eod = {};  // appended to documents that are not empty
  ChatTemplate chat = {};
  double held_out = 0;  // the part of all documents that is for validation
};

// Whether a document is for validation: a part of all texts that depends on the text alone, so that
// neither order nor workers decide, and of equal texts all are on one side.
bool is_held_out(std::string_view text, double part);

// Documents one after the other.
struct EncodedDocuments {
  std::vector<int32_t> ids;
  std::vector<uint8_t> weights;  // of each id; chats alone have them
  std::vector<int64_t> ends;     // of each document in ids
  std::vector<bool> held_out;    // each document, where DocumentRules::held_out is not 0
};

// Appends the document of one line (or file), or both of a preference pair. Throws std::string with what is wrong with it; then
// `out` is as it was.
void add_document(std::string_view text, const DocumentRules& rules, const Encode& encode,
                  EncodedDocuments& out);

// The chats of a line: one, or a pair's two. Throws JsonFault, and std::string for a pair among
// chats or a chat among pairs.
std::vector<ChatRow> chats_of(std::string_view text, const DocumentRules& rules);

// Appends `count` documents of a line, each by add(i), or throws what that did, with `out` as it was.
void add_documents(std::string_view text, const DocumentRules& rules, size_t count,
                   const std::function<void(size_t i)>& add, EncodedDocuments& out);

// The end of a document of which the ids from `begin` on have been appended: add_document's own.
void end_document(std::string_view text, const DocumentRules& rules, size_t begin,
                  EncodedDocuments& out);

}  // namespace troupe
