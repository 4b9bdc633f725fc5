// Special ids by the names that files give them, where nothing else says what they are for.
#pragma once

#include <array>
#include <string_view>
#include <vector>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

// With full-width bars, and U+2581 between the words.
inline constexpr std::string_view kDeepSeekBos =
    "<\xEF\xBD\x9C\x62"
    "egin\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>";
inline constexpr std::string_view kDeepSeekEos =
    "<\xEF\xBD\x9C\x65"
    "nd\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>";

inline SpecialIds special_by_name(const std::vector<AddedToken>& added, TokenId unk) {
  using Names = std::vector<std::string_view>;
  const auto find = [&](const Names& names) -> TokenId {
    for (const std::string_view name : names) {
      for (const AddedToken& token : added) {
        if (token.special && token.content == name) return token.id;
      }
    }
    return -1;
  };
  SpecialIds out;
  out.bos = find({"<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", kDeepSeekBos});
  out.eos = find({"</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>", "<EOT>", kDeepSeekEos});
  out.pad = find({"<pad>", "[PAD]", "<|padding|>", "<|pad|>"});
  out.unk = unk >= 0 ? unk : find({"<unk>", "[UNK]"});
  return out;
}

}  // namespace troupe
