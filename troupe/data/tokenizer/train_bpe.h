// Makes a byte-level BPE vocabulary from texts: a tokenizer.json that Troupe and Hugging Face's
// tokenizers load, with the same ids.
//
// Texts are cut by a family's pattern into words; a word begins as bytes. Again and again the most
// frequent pair of neighbors in all words (of equals the one with the smaller ids) becomes a
// token, until the vocabulary is full or no pair is left that occurs twice. Ids: special tokens,
// the 256 bytes, then the merges in order.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/core/device/pool.h"

namespace troupe {

struct BpeTraining {
  int64_t vocab = 2048;          // all of it; at least 256 and the special tokens
  std::string pattern = "gpt2";  // gpt2, cl100k, qwen, o200k (patterns.h)
  std::vector<std::string> special = {"<|endoftext|>"};
  int64_t max_token_bytes = 64;  // a longer token is never made

  static void visit(auto& c, auto&& f) {
    f("vocab", c.vocab);
    f("pattern", c.pattern);
    f("special", c.special);
    f("max_token_bytes", c.max_token_bytes);
  }
};

// The text of a tokenizer.json: the same bytes for any pool and any order of the texts. Where the
// texts hold too few pairs the vocabulary is smaller than was asked for.
std::string train_bpe(const std::vector<std::string_view>& texts, const BpeTraining& settings,
                      const Pool& pool);

}  // namespace troupe
