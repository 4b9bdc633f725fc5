// tiktoken's files of ranks: a line a token, its bytes in base64 and its rank, which is its id. A
// file does not say by which pattern text is cut nor which tokens are special: known encodings are
// recognized by their number of ranks; others are opened with settings.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

struct TiktokenSettings {
  std::string pattern;
  std::vector<std::pair<std::string, TokenId>> special;  // text to id, none of which is a rank
  std::string bos, eos;                                  // which of them; "": none
};

// r50k, p50k, cl100k, o200k (as gpt-oss uses it, "harmony"), Llama 3, Qwen, Qwen 3.5: by the number
// of ranks. Any other number is refused.
std::unique_ptr<Tokenizer> open_tiktoken(const std::string& path);

// `text` is the file's content; `file` is for messages.
std::unique_ptr<Tokenizer> parse_tiktoken(const std::string& text, const std::string& file,
                                          const TiktokenSettings& settings);

// Whether a file's first bytes look like one.
bool looks_like_tiktoken(std::string_view head);

}  // namespace troupe
