// PREFIX.json: what `data build` remembers of how it made PREFIX.bin. Files of other tools have
// none.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "troupe/data/files/data_file.h"
#include "troupe/data/text/documents.h"
#include "troupe/data/tokenizer/chat_template.h"

namespace troupe {

struct BuildInfo {
  std::string tokenizer;  // its fingerprint; empty: not known
  int64_t vocab = 0;      // 0: not known
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t skipped = 0;                               // documents that were bad
  std::optional<ChatTemplate> chat = {};             // of chats, the marks around their messages
  std::optional<ModelTemplate> model_template = {};  // or the template that wrote them
  // The part of a corpus' documents that this set was taken from and PREFIX goes without; 0: it is
  // no such set; absent: not known.
  std::optional<double> held_out = {};
  // Documents 2 p and 2 p + 1 are the chosen and the rejected one of preference pair p.
  bool pairs = false;
  static void visit(auto& c, auto&& f) {
    f("tokenizer", c.tokenizer);
    f("vocab", c.vocab);
    f("documents", c.documents);
    f("tokens", c.tokens);
    f("skipped", c.skipped);
    f("chat", c.chat);
    f("model_template", c.model_template);
    f("held_out", c.held_out);
    f("pairs", c.pairs);
  }
};

std::optional<BuildInfo> read_build_info(const std::string& prefix,
                                         const RemoteAccess& remote = {});

// Throws E2005 where the data is of preference pairs and `wanted` is false, or the other way round.
void require_pairs(const std::string& prefix, bool wanted, const RemoteAccess& remote = {});

// Throws E3108 if the data says that another tokenizer than `tokenizer` made it. Where one of the
// two is not known there is nothing to compare.
void require_tokenizer(const std::string& prefix, const std::string& tokenizer,
                       const RemoteAccess& remote = {});

}  // namespace troupe
