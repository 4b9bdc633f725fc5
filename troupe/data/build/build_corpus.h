// `data build`: a corpus of text becomes PREFIX.bin, PREFIX.idx and PREFIX.json (for chats also
// PREFIX.weights), the same bytes for any number of workers, the bytes of Megatron's tools for
// JSONL.
//
// Lines are encoded by all cores, in pieces, and written in their order; memory is a few pieces for
// each worker and does not grow with the corpus. Every 256 MiB of text what is there is synced and
// noted in PREFIX.building: the same command, after a kill or a power cut, resumes there if
// neither settings nor files have changed, and else begins anew.
//
// With `valid` a part of the documents goes to PREFIX-valid, which has the same files, and not to
// PREFIX (is_held_out). A build that is killed while files appear may leave PREFIX-valid without
// PREFIX; the same command makes both. `replace` without `valid` removes a PREFIX-valid that was
// held out of the PREFIX that it replaces: its documents are in the new one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/core/text/units.h"
#include "troupe/data/text/build_info.h"
#include "troupe/data/text/documents.h"
#include "troupe/data/text/masked_text.h"
#include "troupe/data/tokenizer/chat_template.h"

namespace troupe {

enum class OnBad { kStop, kSkip };
constexpr auto names_of(OnBad) {
  return std::array{Named{"stop", OnBad::kStop}, Named{"skip", OnBad::kSkip}};
}

struct BuildConfig {
  std::vector<std::string> input;  // files, folders, patterns: read in this order
  std::string output;              // PREFIX
  CorpusFormat format = CorpusFormat::kAuto;
  std::string key = {};  // of JSONL and tables; empty: "text"; of chats, as the line says
  ChatLayout layout = ChatLayout::kAuto;  // of chats
  double valid = 0;                       // the part of all documents that goes to PREFIX-valid
  bool append_eod = true;
  OnBad on_bad = OnBad::kStop;
  Bytes longest = {int64_t{64} << 20};  // line, or file where a file is a document
  int workers = 0;                      // 0: one for each core
  bool replace = false;                 // PREFIX may exist
  ChatTemplate chat = {};
  std::optional<ModelTemplate> model_template = {};  // writes chats in place of `chat`
  static void visit(auto& c, auto&& f) {
    f("input", c.input);
    f("output", c.output);
    f("format", c.format);
    f("key", c.key);
    f("layout", c.layout);
    f("valid", c.valid);
    f("append_eod", c.append_eod);
    f("on_bad", c.on_bad);
    f("longest", c.longest);
    f("workers", c.workers);
    f("replace", c.replace);
    f("chat", c.chat);
    f("model_template", c.model_template);
  }
};

struct BuildTokenizer {
  Encode encode;
  Spell spell = {};   // needed where a model's own template writes chats
  int64_t vocab = 0;  // ids are below; decides between 2 and 4 bytes an id
  std::optional<int32_t> eod = {};
  std::string fingerprint = {};  // goes into PREFIX.json
  std::string manner = {};       // how it is used, where that decides ids: "special as text"
};

struct BuildResult {
  BuildInfo info;
  int64_t sequences = 0;
  int64_t text_bytes = 0;  // of the corpus
  int64_t read_bytes = 0;  // of them, by this process, in `seconds`
  double seconds = 0;
  bool resumed = false;
  BuildInfo valid = {};          // of PREFIX-valid, where there is one
  int64_t learned = 0;           // tokens that are targets: of chats, what the learned role says
  int64_t not_utf8 = 0;          // documents with bytes that are no UTF-8; the tokenizer takes them
  std::vector<std::string> bad;  // the first ten documents that were skipped, with their place
};

inline std::string valid_prefix(const std::string& prefix) {
  return prefix + "-valid";
}

// How a build works inside; a test makes pieces and notes small.
struct BuildLimits {
  int64_t piece = 1 << 20;
  int64_t bytes_between_notes = int64_t{256} << 20;
};

// Throws at a bad document where `on_bad` says so; else `kept` gets those that are among the first
// ten. Returns how many there are.
struct BadDocument;
int64_t skip_bad(const std::vector<BadDocument>& bad, OnBad on_bad, std::vector<std::string>& kept);

void require_layout(const BuildConfig& config);  // E2005 where it means nothing
void validate(const BuildConfig& config, const BuildTokenizer& tokenizer);
BuildResult build_corpus(const BuildConfig& config, const BuildTokenizer& tokenizer, Fs& fs,
                         const Log& log = {}, const BuildLimits& limits = {});

}  // namespace troupe
