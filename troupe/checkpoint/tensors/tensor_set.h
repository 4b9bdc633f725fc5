// Tensors by name, from whatever holds some: what `inspect` and `diff` look at.
#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/checkpoint/files/manifest.h"

namespace troupe {

class TensorSet {
 public:
  struct Tensor {
    Element element;
    Sizes shape;
    int64_t numel() const { return Box::whole(shape).numel(); }
    int64_t bytes() const { return numel() * bits_of(element) / 8; }
  };
  using Tensors = std::map<std::string, Tensor, std::less<>>;

  virtual ~TensorSet() = default;
  virtual std::string_view kind() const = 0;  // "checkpoint", "model folder", "safetensors file"
  virtual std::string place() const = 0;
  virtual std::vector<std::string> warnings() const { return {}; }
  virtual const Manifest* manifest() const { return nullptr; }  // checkpoints have one
  // The whole tensor, row-major. A checkpoint's bytes are compared with their checksums.
  virtual std::vector<std::byte> read(const std::string& name) const = 0;
  const Tensors& tensors() const { return tensors_; }

 protected:
  Tensors tensors_;
};

// Whether the path is one of the below, by what the folder holds or how the file is called; false
// also where there is nothing.
bool holds_tensors(const std::string& path);

// A checkpoint (manifest.json in it); the newest complete one of a run folder; a model hub's folder
// (model.safetensors or its index); a safetensors file. What is damaged or incomplete is refused as
// its reader does; anything else is E4002.
std::unique_ptr<TensorSet> open_tensors(const std::string& path);

}  // namespace troupe
