// What every target of a tokenizer does: reads the bytes or refuses them; what was read encodes
// `text`, and decodes that and the id `any` to UTF-8.
#pragma once

#include <cstddef>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

template <class Open>
void encode_and_decode(const Open& open, const std::string& text, size_t any) {
  try {
    const auto tokenizer = open();
    auto ids = tokenizer->encode(text);
    ids.push_back(static_cast<TokenId>(any));
    if (!is_utf8(tokenizer->decode(ids))) __builtin_trap();
  } catch (const Error& e) {
    if (e.exit_class() != ExitClass::kData) throw;
  }
}

}  // namespace troupe
