// The tokenizers that need no file.
//   bytes    an id is a byte: 256 of them, nothing special; text need not be UTF-8
//   null:N   a text is ids already, "17 4 256" with blanks between; N of them; N ends a document
#pragma once

#include <memory>
#include <string>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

std::unique_ptr<Tokenizer> make_bytes_tokenizer();

// `name` as above, for messages too.
std::unique_ptr<Tokenizer> make_null_tokenizer(const std::string& name);

}  // namespace troupe
