// A corpus to documents of ids, by all cores and in order: what `data build` writes and `data
// count` counts.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/file/log.h"
#include "troupe/data/build/corpus.h"
#include "troupe/data/text/documents.h"
#include "troupe/data/text/masked_text.h"

namespace troupe {

struct BadDocument {
  std::string place, what;
};

// What became of a piece of the corpus.
struct EncodedPiece {
  CorpusPlace next = {};
  EncodedDocuments documents = {};
  std::vector<BadDocument> bad = {};
  int64_t not_utf8 = 0;             // documents that hold bytes which are no UTF-8
  std::string first_not_utf8 = {};  // where the first of them is
  int64_t text_bytes = 0;           // of the piece
};

// `key`, or where it is empty the usual one, "text"; chats have none (chat_line.h).
std::string settled_key(const std::string& key, CorpusFormat format);

// Where the first conversation of a corpus that can be read is, and the layout that its keys make.
struct FirstChat {
  std::string place;
  ChatLayout layout = ChatLayout::kAuto;
  std::string text() const;  // a line of a log
};
// Nothing for what is no corpus of chats, where a key names their lists, and where none can be read.
std::optional<FirstChat> first_chat(const std::vector<std::string>& files,
                                    const DocumentRules& rules, int64_t longest);

// Whether the chats of a corpus are preference pairs: all are what the first one is.
bool holds_pairs(const std::optional<FirstChat>& first, ChatLayout asked);

// How chats become text where a model's own template writes them.
struct ChatWriter {
  ChatRenderers& renderers;
  const Spell& spell;
};

// The documents of one piece, in its format; a line, or a file, of more than `longest` bytes is a
// bad one. With `chats` conversations are written by it, but texts without marks.
EncodedPiece encode_piece(const CorpusPiece& piece, const DocumentRules& rules,
                          const Encode& encode, int64_t longest, const ChatWriter* chats = nullptr);

struct EncodeJob {
  const DocumentRules& rules;
  const Encode& encode;
  int64_t longest = int64_t{64} << 20;
  int workers = 0;  // 0: one for each core
  Log log = {};     // gets a line where the system starts fewer
  const ChatWriter* chats = nullptr;
};

// E2005 for a number of workers that no machine has use for.
void require_workers(int workers);

// Calls f with each piece, in the corpus' order, on this thread. Memory is two pieces a worker.
void encode_corpus(CorpusReader& reader, const EncodeJob& job,
                   const std::function<void(const EncodedPiece&)>& f);

}  // namespace troupe
