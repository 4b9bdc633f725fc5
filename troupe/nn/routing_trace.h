// What the routers chose, kept to be looked at or replayed (rule R15): the choices of each MoE
// layer and microbatch, as int16 where the number of experts allows, else int32, and their counts.
//
//   trace.record(layer, microbatch, out.ids_TK, experts);      in forward; copies to the host
//   tokens.replay_TK = trace.replay(layer, microbatch, device)  another run takes the same choices
//
// File: one line "troupe-trace 1", then for each record a line "layer microbatch experts T K" and
// its T K choices, little-endian, of 2 or 4 bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>

namespace troupe {

class RoutingTrace {
 public:
  // Once for each (layer, microbatch).
  void record(int64_t layer, int64_t microbatch, const at::Tensor& ids_TK, int64_t experts);
  // int32 [T, K]; an error that names both where there is no such record.
  at::Tensor replay(int64_t layer, int64_t microbatch, c10::Device device) const;
  at::Tensor counts(int64_t layer, int64_t microbatch) const;  // int64 [E]
  int64_t size() const { return static_cast<int64_t>(records_.size()); }

  void save(const std::string& path) const;  // the whole file or nothing
  static RoutingTrace load(const std::string& path);

 private:
  struct Choices {
    int64_t experts;
    at::Tensor ids_TK;  // int16 or int32, on the host
  };
  const Choices& at(int64_t layer, int64_t microbatch) const;

  std::map<std::pair<int64_t, int64_t>, Choices> records_;
};

}  // namespace troupe
