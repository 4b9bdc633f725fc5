// The documents of a corpus as plain text in memory: what a vocabulary is made from.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/core/text/units.h"
#include "troupe/data/text/documents.h"

namespace troupe {

struct TextsConfig {
  std::vector<std::string> input;  // as corpus_files takes them
  CorpusFormat format = CorpusFormat::kAuto;
  std::string key = {};                   // as BuildConfig's
  ChatLayout layout = ChatLayout::kAuto;  // likewise
  Bytes most = gib(2);                    // of the corpus that is read; 0: all of it
};

struct CorpusTexts {
  std::vector<std::string> texts = {};  // in the corpus' order; of chats, each message
  int64_t bytes = 0;                    // of them
  int64_t corpus_bytes = 0;
  int64_t read_bytes = 0;  // fewer than corpus_bytes where `most` cut it
};

// A corpus larger than `most` gives pieces of a MiB (or files, where a file is a document), taken
// evenly over all of it: the same ones each time. A document that cannot be read is E3106.
CorpusTexts corpus_texts(const TextsConfig& config);

}  // namespace troupe
