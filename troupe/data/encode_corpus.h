// A corpus to documents of ids, by all cores and in order: what `data build` writes and `data
// count` counts.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "troupe/data/corpus.h"
#include "troupe/data/documents.h"

namespace troupe {

struct BadDocument {
  std::string place, what;
};

// What became of a piece of the corpus.
struct EncodedPiece {
  CorpusPlace next = {};
  EncodedDocuments documents = {};
  std::vector<BadDocument> bad = {};
};

// kAuto settled by the files' names; E2005 where some are JSONL and some are not.
CorpusFormat settled_format(CorpusFormat format, const std::vector<std::string>& files);

// The documents of one piece; a line, or a file, of more than `longest` bytes is a bad one.
EncodedPiece encode_piece(const CorpusPiece& piece, const DocumentRules& rules,
                          const Encode& encode, int64_t longest);

struct EncodeJob {
  const DocumentRules& rules;
  const Encode& encode;
  int64_t longest = int64_t{64} << 20;
  int workers = 0;  // 0: one for each core
};

// Calls f with each piece, in the corpus' order, on this thread. Memory is two pieces a worker.
void encode_corpus(CorpusReader& reader, const EncodeJob& job,
                   const std::function<void(const EncodedPiece&)>& f);

}  // namespace troupe
