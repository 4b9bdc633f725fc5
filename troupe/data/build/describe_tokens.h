// `data inspect`: what a Megatron data set holds, and whether it is sound.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/file/log.h"
#include "troupe/data/text/build_info.h"

namespace troupe {

struct TokenScan {  // of every token
  int64_t smallest = 0, largest = 0;
  int64_t distinct = 0;  // different ids
  int64_t learned = 0;   // those whose weight is 1; all of them where there are no weights
  static void visit(auto& s, auto&& f) {
    f("smallest", s.smallest);
    f("largest", s.largest);
    f("distinct", s.distinct);
    f("learned", s.learned);
  }
};

struct TokenSummary {
  std::string path;  // PREFIX
  std::string type;  // "u16"
  int64_t documents = 0, sequences = 0, empty = 0;
  int64_t tokens = 0, bytes = 0;
  int64_t shortest = 0, median = 0, longest = 0;  // sequences, in tokens
  bool contiguous = true, modes = false, weights = false;
  std::optional<BuildInfo> built = {};  // what PREFIX.json says
  std::optional<TokenScan> scan = {};
  static void visit(auto& s, auto&& f) {
    f("path", s.path);
    f("type", s.type);
    f("documents", s.documents);
    f("sequences", s.sequences);
    f("empty", s.empty);
    f("tokens", s.tokens);
    f("bytes", s.bytes);
    f("shortest", s.shortest);
    f("median", s.median);
    f("longest", s.longest);
    f("contiguous", s.contiguous);
    f("modes", s.modes);
    f("weights", s.weights);
    f("built", s.built);
    f("scan", s.scan);
  }
};

// Checks the index as TokenFile does. With `scan` reads every token; one that is not below the
// vocabulary in PREFIX.json, or below 2^31 where that is not known, is E3102; a count that
// PREFIX.json has otherwise is E3101.
TokenSummary describe_tokens(const std::string& path, bool scan, const Log& log = {});

}  // namespace troupe
