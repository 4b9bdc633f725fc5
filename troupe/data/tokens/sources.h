// All kinds of sources: where the tokens of a data set come from. One struct a kind, and the one
// list. In a recipe:
//   train: [{path: corpus/train, weight: 2}, {kind: text, path: notes.txt, max_epochs: 3}]
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/core/config/facts.h"
#include "troupe/core/config/one_of.h"
#include "troupe/core/file/log.h"
#include "troupe/core/text/text.h"
#include "troupe/data/files/data_file.h"
#include "troupe/data/tokens/token_source.h"

namespace troupe {

class Tokenizer;  // data/tokenizer/tokenizer.h

// What opening a source may have to know.
struct SourceNeeds {
  int64_t vocab = 0;           // of the model; ids are below
  std::string tokenizer = {};  // fingerprint of the recipe's tokenizer; empty: not known
  const Tokenizer* encoder =
      nullptr;  // the recipe's, read while a text is opened; null: its bytes are ids
  std::optional<int32_t> eod = {};  // the id that ends a document
  bool pairs = false;               // preference pairs are wanted, and else refused
  Log log = {};
  RemoteAccess remote = {};
};

// How a source takes part in a mix; fields of every kind.
struct SourceShare {
  double weight = 1;                  // its share of the samples, over the sum of all weights
  std::optional<int64_t> max_epochs;  // reading it more often is an error; absent: no limit
  static void visit(auto& c, auto&& f) {
    f("weight", c.weight, "Sampling weight, relative to the sum of all weights.");
    f("max_epochs", c.max_epochs,
      "Maximum number of epochs, beyond which the run fails; null: no limit.", AtMost{1 << 20});
  }
};

// The fields of a source that is a file.
void visit_file(auto& c, auto&& f) {
  f("path", c.path, "File, or the prefix of .bin and .idx; relative to the working directory.");
  SourceShare::visit(c.share, f);
}

// PREFIX.bin and PREFIX.idx of Megatron's tools or `data build` (token_file.h).
struct MegatronFiles {
  static constexpr std::string_view kKind = "megatron";
  static constexpr std::string_view kHelp = ".bin and .idx of Megatron or `troupe data build`";
  std::string path;
  SourceShare share = {};
  static void visit(auto& c, auto&& f) { visit_file(c, f); }
  TokenSourcePtr open(const SourceNeeds& needs) const;
};

// A file of ids alone, without a header, as OLMo has them (whatever its name ends in). One
// sequence; where its documents end, an end-of-document id says (`data.documents: eod`).
enum class FlatType { kU16, kU32 };
constexpr auto names_of(FlatType) {
  return std::array{Named{"u16", FlatType::kU16}, Named{"u32", FlatType::kU32}};
}
struct FlatFile {
  static constexpr std::string_view kKind = "flat";
  static constexpr std::string_view kHelp = "token ids without a header (OLMo)";
  std::string path;
  FlatType type = FlatType::kU16;
  SourceShare share = {};
  static void visit(auto& c, auto&& f) {
    f("path", c.path, "File, relative to the working directory.");
    f("type", c.type, "Token id type of a flat file: u16 or u32.");
    SourceShare::visit(c.share, f);
  }
  TokenSourcePtr open(const SourceNeeds& needs) const;
};

// llm.c's .bin: 256 words of header that say type and count. One sequence, as above.
struct LlmcFile {
  static constexpr std::string_view kKind = "llmc";
  static constexpr std::string_view kHelp = "llm.c's .bin";
  std::string path;
  SourceShare share = {};
  static void visit(auto& c, auto&& f) { visit_file(c, f); }
  TokenSourcePtr open(const SourceNeeds& needs) const;
};

// A text file: nothing to build. Encoded in memory by the recipe's tokenizer when it is opened, up
// to kLongestText bytes; the bytes are the ids 0 to 255 where the tokenizer is `bytes` or none is
// set. One sequence.
inline constexpr int64_t kLongestText = int64_t{64} << 20;
struct TextFile {
  static constexpr std::string_view kKind = "text";
  static constexpr std::string_view kHelp = "a text file, tokenized when it is opened";
  std::string path;
  SourceShare share = {};
  static void visit(auto& c, auto&& f) { visit_file(c, f); }
  TokenSourcePtr open(const SourceNeeds& needs) const;
};

// No file: Megatron's mock documents. Their lengths are numpy's default_rng(0).integers(1, 4096);
// one of n tokens is 1, 2, ... n - 1, each modulo the vocabulary, and the end-of-document id (0
// where there is none).
struct MockTokens {
  static constexpr std::string_view kKind = "mock";
  static constexpr std::string_view kHelp = "Megatron's mock documents, without a file";
  int64_t documents = 100000;
  SourceShare share = {};
  static void visit(auto& c, auto&& f) {
    f("documents", c.documents, "Number of mock documents.");
    SourceShare::visit(c.share, f);
  }
  TokenSourcePtr open(const SourceNeeds& needs) const;
};

using SourceConfig = OneOf<MegatronFiles, FlatFile, LlmcFile, TextFile, MockTokens>;

inline TokenSourcePtr open(const SourceConfig& config, const SourceNeeds& needs) {
  return std::visit([&](const auto& c) { return c.open(needs); }, config);
}
inline const SourceShare& share_of(const SourceConfig& config) {
  return std::visit([](const auto& c) -> const SourceShare& { return c.share; }, config);
}
// The path, or for what has none the kind.
std::string name_of(const SourceConfig& config);

}  // namespace troupe
