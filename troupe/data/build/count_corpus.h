// `data count`: what a build of a corpus would make, without writing it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/data/build/build_corpus.h"

namespace troupe {

struct CorpusCount {
  int64_t files = 0;
  int64_t documents = 0;
  int64_t tokens = 0;   // with what ends documents
  int64_t learned = 0;  // of them, those that are targets: all, but in chats
  int64_t text_bytes = 0;
  int64_t skipped = 0;           // bad documents
  std::vector<std::string> bad;  // the first ten of them, with their place
  int64_t not_utf8 = 0;          // documents with bytes that are no UTF-8
  double seconds = 0;

  static void visit(auto& c, auto&& f) {
    f("files", c.files);
    f("documents", c.documents);
    f("tokens", c.tokens);
    f("learned", c.learned);
    f("text_bytes", c.text_bytes);
    f("skipped", c.skipped);
    f("bad", c.bad);
    f("not_utf8", c.not_utf8);
    f("seconds", c.seconds);
  }
};

// As build_corpus with the same config; config.output is not used.
CorpusCount count_corpus(const BuildConfig& config, const BuildTokenizer& tokenizer,
                         const Log& log = {});

}  // namespace troupe
