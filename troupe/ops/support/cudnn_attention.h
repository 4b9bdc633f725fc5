// What libtroupe.so asks of cuDNN's attention, which is in the plug-in
// (ops/attention/cudnn_plans.cpp): one call over some sequences of a row of tokens and some heads
// of each.
//
// A plan is what cuDNN compiles for one shape. It is built when a shape is first met, which takes
// 40 ms to 1 s, and kept; a call of a plan launches kernels on PyTorch's current stream of the
// current device, allocates nothing and may be captured into a CUDA graph. Backward is cuDNN's
// deterministic one: its bits are the same each time, and those of a sequence's heads do not depend
// on what other sequences and heads the call has, but that query heads of one key head are summed.
#pragma once

#include <array>
#include <compare>
#include <cstdint>

namespace troupe {

// Where a tensor [T, heads, dim] has its next token and its next head, in elements.
struct AttentionStrides {
  int64_t token = 0, head = 0;
  auto operator<=>(const AttentionStrides&) const = default;
};

// Tensors of a call, and the rows of the table of starts.
enum AttentionTensor {
  kTensorQ,
  kTensorK,
  kTensorV,
  kTensorO,
  kLse,
  kGradQ,
  kGradK,
  kGradV,
  kAttentionTensors
};

enum class AttentionMask : uint8_t {
  kCausal,      // query i sees keys up to i
  kCausalLast,  // the last query sees all keys, the one before it all but one, ...
  kNone,        // every query sees all keys; window is 0
};

struct AttentionPlan {
  bool backward = false;
  bool half = false;    // fp16; else bf16
  bool ragged = false;  // sequences have lengths and starts of their own; else they are `length`
                        // long and follow each other
  AttentionMask mask = AttentionMask::kCausal;
  int device = 0;
  int64_t sequences = 0, length = 0;  // ragged: the longest that there may be
  int64_t keys = 0;                   // of a sequence; likewise
  int64_t heads = 0, kv_heads = 0, key_dim = 0, value_dim = 0;
  int64_t window = 0;  // 0: none
  float scale = 1;
  // grad_o is strided as o. lse is f32: [sequences, heads of the whole, length], whose heads' count
  // is strides[kLse].token; ragged: [T, heads of the whole].
  std::array<AttentionStrides, kAttentionTensors> strides = {};
  auto operator<=>(const AttentionPlan&) const = default;
};

struct CudnnAttentionCall {
  std::array<void*, kAttentionTensors> tensors = {};  // forward: up to kLse, o and lse are written
  void* grad_o = nullptr;
  void* workspace = nullptr;
  // ragged: int32 [sequences], of queries and of keys, and for each tensor int64 [sequences + 1]
  // elements before a sequence.
  void* lengths = nullptr;
  void* key_lengths = nullptr;
  std::array<void*, kAttentionTensors> starts = {};
};

struct CudnnAttention {
  int64_t (*workspace_bytes)(const AttentionPlan&) = nullptr;
  void (*run)(const AttentionPlan&, const CudnnAttentionCall&) = nullptr;
};

}  // namespace troupe
