// tokenizer.json of Hugging Face's `tokenizers`, with a BPE model: ids equal to that library's.
// Every component and field is obeyed or refused by its name; the exceptions, which say nothing
// about a text, are in warnings().
#pragma once

#include <memory>
#include <string>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

// The special ids are what tokenizer_config.json beside the file calls bos_token, eos_token,
// pad_token and unk_token; where there is no such file, the special tokens of the usual names (<s>,
// <|endoftext|>, ...).
std::unique_ptr<Tokenizer> open_tokenizer_json(const std::string& path);

std::string tokenizer_config_beside(const std::string& path);  // empty: there is none

// `config`: the text of tokenizer_config.json, "" for none. `file` is for messages.
std::unique_ptr<Tokenizer> parse_tokenizer(const std::string& json, const std::string& config,
                                           const std::string& file);

// GPT-2's pair of files: vocab.json (token to id) and merges.txt (a pair a line, by rank).
std::unique_ptr<Tokenizer> open_gpt2_files(const std::string& vocab, const std::string& merges);

}  // namespace troupe
