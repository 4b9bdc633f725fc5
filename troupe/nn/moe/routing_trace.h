// What the routers chose, kept to be looked at or replayed (rule R15): the choices of each MoE
// layer and microbatch, as int16 where the number of experts allows, else int32, and their counts.
//
//   trace.record(layer, microbatch, out.ids_TK, experts);      in forward; copies to the host
//   tokens.replay_TK = trace.replay(layer, microbatch, device)  another run takes the same choices
//
// Choices are int32 [T, K], -1 for none, no expert twice for a token (E22); expert choice's are
// [T, E]. Logits [T, E] may go with them, as f32.
//
// File: one line "troupe-trace 1", then for each record a line "layer microbatch experts T K L"
// with L = 1 where it has logits, else 0; then, little-endian, its counts (E int64), its T K
// choices of 2 or 4 bytes, and its logits (T E f32).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace troupe {

class Fs;  // core/file/publish.h

class RoutingTrace {
 public:
  // Once for each (layer, microbatch).
  void record(int64_t layer, int64_t microbatch, const at::Tensor& ids_TK, int64_t experts,
              const at::Tensor& logits_TE = {});
  // int32 [T, K]; an error that names both where there is no such record.
  at::Tensor replay(int64_t layer, int64_t microbatch, c10::Device device) const;
  at::Tensor counts(int64_t layer, int64_t microbatch) const;  // int64 [E]
  at::Tensor logits(int64_t layer, int64_t microbatch) const;  // undefined: not recorded
  struct Sizes {
    int64_t experts, tokens, choices;  // E, T, K
  };
  Sizes sizes(int64_t layer, int64_t microbatch) const;
  int64_t size() const { return static_cast<int64_t>(records_.size()); }

  bool has(int64_t layer, int64_t microbatch) const {
    return records_.contains({layer, microbatch});
  }
  std::vector<std::pair<int64_t, int64_t>> records() const;  // (layer, microbatch), sorted

  void save(Fs& fs, const std::string& path) const;  // the whole file or nothing
  // E3001 where the file is none, is cut, or has a record twice.
  static RoutingTrace load(const std::string& path);

 private:
  struct Choices {
    int64_t experts;
    at::Tensor ids_TK;     // int16 or int32, on the host as all here
    at::Tensor counts_E;   // int64
    at::Tensor logits_TE;  // f32 or undefined
  };
  const Choices& at(int64_t layer, int64_t microbatch) const;

  std::map<std::pair<int64_t, int64_t>, Choices> records_;
};

}  // namespace troupe
