// The keys of a model's sizes, as llama.cpp's architecture names them.
#pragma once

#include <vector>

#include "troupe/checkpoint/gguf/gguf_families.h"
#include "troupe/checkpoint/gguf/gguf_file.h"

namespace troupe::gguf {

std::vector<GgufField> model_fields(const Family& family, const ModelConfig& config);

}  // namespace troupe::gguf
