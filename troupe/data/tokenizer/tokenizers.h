// The one list of tokenizers: what a recipe's `tokenizer:` may name.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

// A file that a tokenizer is read from, and what it is called in a folder of this tokenizer alone.
struct TokenizerFile {
  std::string path, name;
};

struct TokenizerKind {
  std::string_view name;
  std::string_view what;                  // for messages and help
  bool (*fits)(const std::string& name);  // whether the name, file or folder is one
  std::unique_ptr<Tokenizer> (*open)(const std::string& name);
  std::vector<TokenizerFile> (*files)(const std::string& name);
};

// To add a tokenizer is to add a file and a line here; the first that fits is taken.
const std::vector<TokenizerKind>& tokenizer_kinds();

// A file, known by its content, not its name; a folder as model hubs have them, by the files in
// it; or one of the words that need no file, `bytes` and `null:N`. Throws E3001 where there is
// nothing of that name and E3102 where nothing fits.
std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name);

// All that open_tokenizer reads, the vocabulary first: none where the name is a word.
std::vector<TokenizerFile> files_of_tokenizer(const std::string& name);

}  // namespace troupe
