// A model as llama.cpp's files have it: which architecture of theirs it is, the keys of its sizes
// and what each of their tensors is made of.
//
// Theirs is made of parts, one after the other along the rows. A part is rows of one tensor of
// ours, which is a matrix of its last dimension's columns (a vector is one row):
//
//   theirs = [ours_0[row .. row + rows], ours_1[..], ..] in theirs' shape
//
// That says experts in one tensor, gate and up apart, and one tensor of queries, keys and values.
// Two kinds of parts are more than that: `transposed`, and `turned_heads`, the rows of each head
// interleaved, row s h/2 + j of a head of h rows at 2 j + s. The architecture `llama` turns
// neighbors where the hub's weights turn halves.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/checkpoint/gguf/gguf_file.h"
#include "troupe/checkpoint/hf/hf_config.h"

namespace troupe {

struct GgufPart {
  std::string ours;
  int64_t row = 0, rows = 0;
  bool transposed = false;
};

struct GgufTensor {
  std::string name;            // theirs
  std::vector<int64_t> shape;  // the fastest dimension last
  std::vector<GgufPart> parts = {};
  int64_t turned_heads = 0;        // 0: rows stay where they are
  bool f32 = false;                // norms, biases, routers: whatever type is asked for
  std::vector<float> values = {};  // in place of parts: a table of f32
};

struct GgufModel {
  std::string architecture;
  std::vector<GgufField> fields = {};
  std::vector<GgufTensor> tensors = {};
  std::vector<std::string> left_out = {};  // ours, which llama.cpp has no place for or use of
  std::vector<std::string> notes = {};     // lines for the log
};

// Throws E4008 for a family that is not written, with those that are, and for a model whose logits
// llama.cpp would not compute: it has a sliding window for gpt-oss alone, and adds up a token's
// weights, or does not, as the family's published models do.
GgufModel gguf_model(const HfConfig& config);

}  // namespace troupe
