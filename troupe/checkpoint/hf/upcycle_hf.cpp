#include "troupe/checkpoint/hf/upcycle_hf.h"

#include <algorithm>
#include <memory>

#include "troupe/core/check.h"
#include "troupe/nn/ffn/dense_ffn.h"
#include "troupe/nn/moe/upcycle.h"

namespace troupe {
namespace {

constexpr const char* kPlace = "--upcycle";

Upcycle upcycle_of(const MoeConfig& moe) {
  const auto* const router = std::get_if<TopkSoftmaxRouting>(&moe.router);
  if (router == nullptr) fail(Code::kBadValue, kPlace, "needs the router topk_softmax");
  return {.experts = moe.experts,
          .hidden = moe.ffn.hidden,
          .top_k = moe.top_k,
          .activation = moe.ffn.form.activation,
          .gated = moe.ffn.form.gated,
          .weights_sum_to_one = router->sums_to_one(moe.top_k)};
}

// One layer's feed-forward as experts, made when the first of them is asked for. Pieces are written
// in the order of the list: one layer is held at a time.
struct Made {
  int64_t layer = -1;
  ExpertWeights experts;
};

at::Tensor of(const HfWeights& dense, const std::string& name) {
  const HfTensor* const found = dense.find(name);
  TROUPE_CHECK(found != nullptr, "the dense model has no", name);
  return dense.read(*found);
}

ExpertWeights experts_of(const HfWeights& dense, const std::string& layer, const MoeConfig& moe) {
  const auto flat = [](const at::Tensor& x, int64_t columns) { return x.reshape({-1, columns}); };
  const at::Tensor w2 = of(dense, layer + "ffn.w2");
  DenseWeights ffn{
      .w1 = flat(of(dense, layer + "ffn.w1"), w2.size(0)), .b1 = {}, .w2 = w2, .b2 = {}};
  if (moe.ffn.bias) {
    ffn.b1 = of(dense, layer + "ffn.b1").flatten();
    ffn.b2 = of(dense, layer + "ffn.b2");
  }
  return upcycle(ffn, upcycle_of(moe));
}

}  // namespace

ModelConfig upcycled_model(const ModelConfig& dense, const MoeConfig& moe) {
  if (num_moe_layers(dense) > 0) fail(Code::kBadValue, kPlace, "the model has experts already");
  if (moe.experts < 1) fail(Code::kBadValue, kPlace, "needs experts: '{experts: 8, top_k: 2}'");
  ModelConfig out = dense;
  out.moe = moe;
  if (out.moe.ffn.hidden == 0) out.moe.ffn.hidden = dense.ffn;
  out.moe.ffn.form = form_of(dense.act);
  out.moe.ffn.bias = dense.ffn_bias.value_or(dense.bias);
  const Upcycle u = upcycle_of(out.moe);
  if (dense.ffn % u.hidden != 0 || u.experts % (dense.ffn / u.hidden) != 0 ||
      u.top_k % (dense.ffn / u.hidden) != 0 || u.top_k > u.experts) {
    fail(Code::kBadValue, kPlace, "hidden", u.hidden, "must divide the dense width",
         std::to_string(dense.ffn) + ", and experts", u.experts, "and top_k", u.top_k,
         "must be multiples of the slices,", dense.ffn / std::max<int64_t>(u.hidden, 1));
  }
  validate(out);
  return out;
}

std::vector<UpcycledTensor> upcycled_tensors(const HfWeights& dense, const ModelConfig& model) {
  std::vector<UpcycledTensor> out;
  const auto made = std::make_shared<Made>();
  const MoeConfig moe = model.moe;
  const int64_t E = moe.experts, F = moe.ffn.hidden, D = model.width, g = moe.ffn.form.gates();
  for (int64_t i = 0; i < model.layers; ++i) {
    if (!layer_config(model, i).moe) continue;
    const std::string layer = "layers." + std::to_string(i) + '.';
    const Upcycle u = upcycle_of(moe);
    const int64_t dense_hidden = dense.config().model.ffn, rows = E / slices(u, dense_hidden);
    const double std = std::get<TopkSoftmaxRouting>(moe.router).gate.std;
    const std::string router = layer + "moe.router.weight";
    out.push_back({router, {E, D}, [=] {
                     Param drawn = Param::of({rows, D}, {.kind = Init::kNormal, .std = std});
                     initialize(drawn, router, 0);
                     return upcycle_router(drawn.value.detach(), u, dense_hidden);
                   }});
    const auto experts = [made, &dense, layer, moe, i]() -> const ExpertWeights& {
      if (made->layer != i) *made = {i, experts_of(dense, layer, moe)};
      return made->experts;
    };
    for (int64_t e = 0; e < E; ++e) {
      const std::string own = layer + "moe.experts." + std::to_string(e) + '.';
      const std::vector<int64_t> up = {g, F, D};
      out.push_back({own + "w1", up, [=] { return experts().w1[e].reshape(up); }});
      out.push_back({own + "w2", {D, F}, [=] { return experts().w2[e]; }});
      if (!moe.ffn.bias) continue;
      out.push_back({own + "b1", {g, F}, [=] { return (*experts().b1)[e].reshape({g, F}); }});
      out.push_back({own + "b2", {D}, [=] { return (*experts().b2)[e]; }});
    }
  }
  return out;
}

bool is_upcycled(const ModelConfig& model, const std::string& name) {
  for (int64_t i = 0; i < model.layers; ++i) {
    const std::string ffn = "layers." + std::to_string(i) + ".ffn.";
    if (name.starts_with(ffn)) return layer_config(model, i).moe.has_value();
  }
  return false;
}

}  // namespace troupe
