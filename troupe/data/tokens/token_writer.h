// Makes PREFIX.bin and PREFIX.idx, byte for byte as Megatron's tools do, and PREFIX.weights if
// asked.
//
// The parts grow in the folder PREFIX.building, one process at a time; publish() renames them into
// place, the .idx last: there is never an .idx without the whole .bin beside it. A killed writer
// leaves the folder, and a new one can resume from a position at which `sync` returned.
// Memory does not grow with the data.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "troupe/core/file/publish.h"
#include "troupe/data/tokens/token_type.h"

namespace troupe {

struct TokenCounts {  // what a writer holds
  int64_t tokens = 0;
  int64_t sequences = 0;
  int64_t documents = 0;
  static void visit(auto& c, auto&& f) {
    f("tokens", c.tokens);
    f("sequences", c.sequences);
    f("documents", c.documents);
  }
};

struct TokenOutput {
  std::string prefix;
  TokenType type = TokenType::kU16;
  bool weights = false;
  bool replace = false;  // PREFIX.idx may exist; it is removed when the new files are whole
};

class TokenWriter {
 public:
  // Begins anew, or resumes at `from`. Throws E3109 if PREFIX.idx exists, or another process
  // writes there.
  TokenWriter(Fs& fs, TokenOutput output, std::optional<TokenCounts> from = std::nullopt);
  TokenWriter(const TokenWriter&) = delete;
  TokenWriter& operator=(const TokenWriter&) = delete;
  ~TokenWriter();  // what is not published stays in the folder

  static std::string folder(const std::string& prefix) { return prefix + ".building"; }
  // Whether the folder holds at least `from`; then a TokenWriter can resume there.
  static bool can_resume(const TokenOutput& output, const TokenCounts& from);

  // Tokens of the sequence that is open; `weights`, where asked for, has a 0 or 1 for each.
  void add_tokens(std::span<const int32_t> ids, std::span<const uint8_t> weights = {});
  void end_sequence();  // also one of no tokens; Megatron's tools write none
  void end_document();  // of the sequences since the last; none is legal
  const TokenCounts& counts() const { return counts_; }
  void sync();     // all added so far is on the disk
  void publish();  // the files appear; the folder goes

 private:
  struct Part;
  void write_index();
  Part& part(int which) { return *parts_[static_cast<size_t>(which)]; }

  Fs& fs_;
  TokenOutput output_;
  std::string folder_;
  int lock_ = -1;
  TokenCounts counts_;
  int64_t sequence_begin_ = 0;  // the token at which the open sequence begins
  std::array<std::unique_ptr<Part>, 4> parts_;
};

}  // namespace troupe
