// Tensors by name, in a file that torch.save wrote and torch.load reads.
#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/ivalue.h>
#include <torch/csrc/jit/serialization/pickle.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace troupe {

using Tensors = c10::Dict<std::string, at::Tensor>;

inline Tensors load_pickled(const char* path) {
  std::ifstream in(path, std::ios::binary);
  const std::vector<char> bytes((std::istreambuf_iterator<char>(in)), {});
  Tensors out;
  const c10::IValue value = torch::jit::pickle_load(bytes);
  for (const auto& entry : value.toGenericDict()) {
    out.insert(entry.key().toStringRef(), entry.value().toTensor());
  }
  return out;
}

inline void save_pickled(const char* path, const Tensors& tensors) {
  const std::vector<char> bytes = torch::jit::pickle_save(tensors);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<int64_t>(bytes.size()));
}

}  // namespace troupe
