#include "troupe/distributed/params/param.h"
#include "troupe/nn/models/hf/table.h"

namespace troupe::hf {
namespace {

// Transposed, [E, D, 2 F] and [E, F, D], gate in even columns and up in odd ones.
void add_transposed_experts(Table& t, const ModelConfig& c, const LayerConfig& l,
                            const Prefix& at) {
  const int64_t E = l.moe->experts, F = l.moe->ffn.hidden, D = c.width;
  const std::string a = at.ours + "moe.experts.", b = at.theirs + "mlp.experts.";
  t.same(at.ours + "moe.router.weight", {E, D}, at.theirs + "mlp.router.weight");
  t.same(at.ours + "moe.router.bias", {E}, at.theirs + "mlp.router.bias");
  for (int64_t e = 0; e < E; ++e) {
    const int64_t up_at = e * D * 2 * F, bias = e * 2 * F;
    const std::vector<int64_t> up = {E, D, 2 * F};
    t.add(expert_name(a + "w1", e), {2, F, D},
          {piece(b + "gate_up_proj", up, 0, F, {up_at, 2, 2 * F}),
           piece(b + "gate_up_proj", up, F, F, {up_at + 1, 2, 2 * F})});
    t.add(expert_name(a + "b1", e), {2, F},
          {piece(b + "gate_up_proj_bias", {E, 2 * F}, 0, 1, {bias, 1, 2}),
           piece(b + "gate_up_proj_bias", {E, 2 * F}, 1, 1, {bias + 1, 1, 2})});
    t.add(expert_name(a + "w2", e), {D, F},
          {piece(b + "down_proj", {E, F, D}, 0, D, {e * F * D, 1, D})});
    t.add(expert_name(a + "b2", e), {D},
          {piece(b + "down_proj_bias", {E, D}, 0, D, {e * D, 1, 1})});
  }
}

}  // namespace

std::vector<HfTensor> gpt_oss_names(const ModelConfig& c, bool /*fused*/) {
  return layered_names(c, [&](Table& t, const LayerConfig& l, const Prefix& at) {
    add_norms(t, c, at);
    add_attention(t, c, l, at);
    add_transposed_experts(t, c, l, at);
  });
}

}  // namespace troupe::hf
