// cuDNN's attention in the plug-in: plans by cuDNN's frontend, kept by shape.
#include <ATen/cudnn/Handle.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cudnn_frontend.h>

#include <memory>
#include <mutex>
#include <unordered_map>

#include "troupe/core/check.h"
#include "troupe/ops/attention/kept_plans.h"
#include "troupe/ops/support/cudnn_attention.h"

namespace troupe {
namespace {

namespace fe = cudnn_frontend;
using Tensor = std::shared_ptr<fe::graph::Tensor_attributes>;

// Names of the tensors of a graph: those of AttentionTensor, their starts, and these.
constexpr int64_t kStarts = kAttentionTensors, kGradO = 2 * kAttentionTensors,
                  kLengths = kGradO + 1, kKeyLengths = kGradO + 2;

void check(fe::error_t status, const AttentionPlan& p) {
  TROUPE_CHECK(status.is_good(), "attention: cuDNN has no plan for", p.sequences, "sequences of",
               p.length, "tokens and", p.keys, "keys with", p.heads, "heads of", p.key_dim, "and",
               p.value_dim, "over", p.kv_heads, "key heads, window", p.window, "-",
               status.get_message(), "- run.deterministic=false takes PyTorch's attention");
}

struct Plan {
  fe::graph::Graph graph;
  int64_t workspace = 0;
};

// Makes the tensors of a plan's graph.
class Builder {
 public:
  Builder(const AttentionPlan& plan, Plan& out) : p_(plan), graph_(out.graph) {
    graph_.set_io_data_type(p_.half ? fe::DataType_t::HALF : fe::DataType_t::BFLOAT16)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    if (!p_.ragged) return;
    lengths_ = lengths(kLengths);
    key_lengths_ = lengths(kKeyLengths);
  }

  void forward() {
    auto options = with_mask(fe::graph::SDPA_attributes().set_name("attention"));
    options.set_generate_stats(true);
    const auto [o, lse] = graph_.sdpa(input(kTensorQ), input(kTensorK), input(kTensorV), options);
    output(o, kTensorO);
    output(lse, kLse);
  }

  void backward() {
    auto options = with_mask(fe::graph::SDPA_backward_attributes().set_name("attention_backward"));
    options.set_deterministic_algorithm(true);
    const Tensor q = input(kTensorQ), k = input(kTensorK), v = input(kTensorV), o = input(kTensorO),
                 lse = input(kLse);
    const Tensor grad_o = graph_.tensor(place(kTensorO).set_uid(kGradO));
    if (p_.ragged) grad_o->set_ragged_offset(o->get_ragged_offset());
    const auto [grad_q, grad_k, grad_v] = graph_.sdpa_backward(q, k, v, o, grad_o, lse, options);
    output(grad_q, kGradQ);
    output(grad_k, kGradK);
    output(grad_v, kGradV);
  }

 private:
  using Sizes = std::vector<int64_t>;

  static fe::graph::Tensor_attributes shaped(const Sizes& sizes, const Sizes& strides,
                                             int64_t uid) {
    fe::graph::Tensor_attributes out;
    out.set_dim(sizes).set_stride(strides).set_uid(uid);
    return out;
  }

  // [sequences, heads, length, dim]
  fe::graph::Tensor_attributes place(AttentionTensor t) const {
    const bool keys = t == kTensorK || t == kTensorV || t == kGradK || t == kGradV;
    const bool values = t == kTensorV || t == kTensorO || t == kGradV;
    const int64_t B = p_.sequences, S = keys ? p_.keys : p_.length;
    const auto [token, head] = p_.strides[t];
    if (t == kLse) {
      const Sizes strides = p_.ragged ? Sizes{S * token, 1, token, 1} : Sizes{S * token, S, 1, 1};
      return shaped({B, p_.heads, S, 1}, strides, t).set_data_type(fe::DataType_t::FLOAT);
    }
    return shaped({B, keys ? p_.kv_heads : p_.heads, S, values ? p_.value_dim : p_.key_dim},
                  {S * token, head, token, 1}, t);
  }

  Tensor lengths(int64_t uid) {
    return graph_.tensor(
        shaped({p_.sequences, 1, 1, 1}, {1, 1, 1, 1}, uid).set_data_type(fe::DataType_t::INT32));
  }

  Tensor starts(AttentionTensor t) {
    return graph_.tensor(shaped({p_.sequences + 1, 1, 1, 1}, {1, 1, 1, 1}, kStarts + t)
                             .set_data_type(fe::DataType_t::INT64));
  }

  Tensor input(AttentionTensor t) {
    Tensor out = graph_.tensor(place(t));
    if (p_.ragged) out->set_ragged_offset(starts(t));
    return out;
  }

  void output(const Tensor& out, AttentionTensor t) {
    const fe::graph::Tensor_attributes like = place(t);
    out->set_output(true).set_dim(like.get_dim()).set_stride(like.get_stride()).set_uid(t);
    if (t == kLse) out->set_data_type(fe::DataType_t::FLOAT);
    if (p_.ragged) out->set_ragged_offset(starts(t));
  }

  template <class Options>
  Options with_mask(Options options) const {
    options.set_attn_scale(p_.scale);
    if (p_.ragged) {
      options.set_padding_mask(true).set_seq_len_q(lengths_).set_seq_len_kv(key_lengths_);
    }
    if (p_.mask == AttentionMask::kNone) return options;
    options.set_diagonal_band_right_bound(0).set_diagonal_alignment(
        p_.mask == AttentionMask::kCausal ? fe::DiagonalAlignment_t::TOP_LEFT
                                          : fe::DiagonalAlignment_t::BOTTOM_RIGHT);
    if (p_.window > 0) options.set_diagonal_band_left_bound(static_cast<int>(p_.window));
    return options;
  }

  const AttentionPlan& p_;
  fe::graph::Graph& graph_;
  Tensor lengths_, key_lengths_;
};

std::unique_ptr<Plan> built(const AttentionPlan& p) {
  auto out = std::make_unique<Plan>();
  Builder builder(p, *out);
  p.backward ? builder.backward() : builder.forward();
  const cudnnHandle_t handle = at::native::getCudnnHandle();
  check(out->graph.build(handle, {fe::HeurMode_t::A}), p);
  check(out->graph.get_workspace_size(out->workspace), p);
  return out;
}

// Shapes come of recipes, of prompts' lengths and of documents' lengths in powers of two. A run has
// a few dozen; past this many the one that was not met for longest goes.
constexpr size_t kKept = 512;

struct Plans {
  std::mutex mutex;  // backward runs in a thread of autograd's
  KeptPlans<AttentionPlan, Plan> by_shape{kKept};
};

bool captures() {
  return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
}

template <class F>
auto with_plan(const AttentionPlan& p, F&& f) {
  static Plans plans;  // A plan holds code that cuDNN compiled for this process.
  const std::lock_guard lock(plans.mutex);
  return f(plans.by_shape.get(p, captures(), [&] { return built(p); }));
}

}  // namespace

int64_t cudnn_attention_workspace_bytes(const AttentionPlan& p) {
  return with_plan(p, [](const Plan& plan) { return plan.workspace; });
}

void cudnn_attention_run(const AttentionPlan& p, const CudnnAttentionCall& call) {
  std::unordered_map<int64_t, void*> memory;
  for (int64_t t = 0; t < (p.backward ? kAttentionTensors : kGradQ); ++t) {
    memory[t] = call.tensors[t];
    if (p.ragged) memory[kStarts + t] = call.starts[t];
  }
  if (p.backward) memory[kGradO] = call.grad_o;
  if (p.ragged) {
    memory[kLengths] = call.lengths;
    memory[kKeyLengths] = call.key_lengths;
  }
  with_plan(p, [&](Plan& plan) {
    check(plan.graph.execute(at::native::getCudnnHandle(), memory, call.workspace), p);
  });
}

}  // namespace troupe
