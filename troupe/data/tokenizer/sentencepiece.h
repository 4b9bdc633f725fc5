// SentencePiece .model files, by libsentencepiece: its ids, and its text except for text that is no
// UTF-8, of which it replaces each byte. A .model says nothing of what goes around a text, so
// add_special adds nothing; special() has its bos and eos.
#pragma once

#include <memory>
#include <string>

#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

std::unique_ptr<Tokenizer> open_sentencepiece(const std::string& path);

// `bytes`: the file's content; `file` is for messages.
std::unique_ptr<Tokenizer> parse_sentencepiece(const std::string& bytes, const std::string& file);

}  // namespace troupe
