// For tests: a file of tensors that appears whole or not at all.
#pragma once

#include <string>

#include "troupe/checkpoint/files/safetensors.h"

namespace troupe {

inline void publish_safetensors(Fs& fs, const std::string& path, const SafetensorsLayout& layout,
                                const TensorSource& source) {
  publish_file(fs, path, [&](NewFile& file) { write_safetensors(file, layout, source); });
}

}  // namespace troupe
