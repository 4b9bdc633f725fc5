// A tokenizer as the fields of a GGUF file, from which llama.cpp makes its own.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/checkpoint/gguf/gguf_file.h"

namespace troupe {

struct GgufVocabulary {
  std::vector<GgufField> fields;
  std::vector<std::string> notes = {};  // lines for the log
};

// `tokenizer`: a folder or a file as ExportSource has it. Byte-level BPE of tokenizer.json is
// "gpt2", with its merges; BPE with bytes to fall back on, and SentencePiece's BPE, are "llama", with
// scores. Ids of the model that the tokenizer has not are unused tokens. Where `tokenizer` is
// empty, or a folder without one, the file has no vocabulary ("none"): llama.cpp takes ids alone.
// E3103 where the tokenizer has more ids than the model; E4008 for one that llama.cpp has no form
// for.
GgufVocabulary gguf_vocabulary(const std::string& tokenizer, int64_t model_vocab);

}  // namespace troupe
