// A block of one's own, outside Troupe: norms before and behind each part (Gemma 2).
//   h = h + norm2(attention(norm1(h)));   h = h + norm4(ffn(norm3(h)))
// A small model of such blocks, two of them with experts, learns to count.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "troupe/nn/blocks/block.h"
#include "troupe/nn/model/model.h"
#include "troupe/troupe.h"

namespace {

class SandwichBlock : public troupe::Block {
 public:
  explicit SandwichBlock(const troupe::BlockShape& shape)
      : parts_(shape), norms_(4, troupe::NormModule(shape.model.norm, shape.model.width)) {}

  troupe::UnitResult forward(const at::Tensor& h, const troupe::Batch& batch,
                             const troupe::Packing& packing,
                             const troupe::Context& context) override {
    const troupe::BlockCall call = parts_.call(batch, packing, context);
    const at::Tensor a = h + norms_[1].forward(parts_.attend(norms_[0].forward(h), call));
    troupe::UnitResult result;
    const at::Tensor y = parts_.feed_forward(norms_[2].forward(a), call, result);
    result.h = a + norms_[3].forward(y);
    return result;
  }
  troupe::MoeLayer* moe() override { return parts_.moe.get(); }
  void for_each(const std::string& prefix, const troupe::VisitParam& f) override {
    troupe::for_each_member_param(*this, prefix, f);
  }
  static void visit(auto& m, auto&& f) {
    f("norms", m.norms_);
    f("attention", m.parts_.attention);
    f("ffn", m.parts_.ffn);
    f("moe", m.parts_.moe);
  }

 private:
  troupe::BlockParts parts_;
  std::vector<troupe::NormModule> norms_;
};

constexpr int64_t kVocab = 32, kRows = 8, kTokens = 16;

troupe::ModelConfig small_model() {
  troupe::ModelConfig config;
  config.layers = 3;
  config.width = 32;
  config.heads = 4;
  config.vocab = kVocab;
  config.max_positions = kTokens;
  config.ffn = 64;
  config.first_dense = 1;
  config.moe.experts = 4;
  config.moe.top_k = 2;
  config.moe.ffn.hidden = 32;
  return config;
}

void run() {
  const auto model =
      troupe::build_model(small_model(), {.block = [](const troupe::BlockShape& shape) {
                            return std::make_unique<SandwichBlock>(shape);
                          }});
  model->for_each_param(-1, [](const std::string& name, troupe::Param& p) {
    troupe::initialize(p, name, /*seed=*/1);
  });
  const at::Tensor from = at::arange(kRows).unsqueeze(1) * 3 + at::arange(kTokens + 1);
  const at::Tensor ids = from % kVocab;
  const troupe::Batch batch = {.ids_BS = ids.narrow(1, 0, kTokens).contiguous(),
                               .labels_BS = ids.narrow(1, 1, kTokens).contiguous()};
  for (int step = 0; step <= 60; ++step) {
    at::Tensor h;
    troupe::UnitResult unit;
    for (int64_t u = 0; u < model->num_units(); ++u) {
      unit = model->forward(u, h, batch, {.training = true});
      h = unit.h;
    }
    const at::Tensor loss = unit.loss_sum / unit.weight_sum;
    if (step % 20 == 0) std::printf("step %d  loss %.4f\n", step, loss.item<double>());
    loss.backward();
    const at::NoGradGuard no_grad;
    model->for_each_param(-1, [](const std::string&, troupe::Param& p) {
      if (p.value.grad().defined()) p.value.sub_(p.value.grad() * 0.5);
      p.value.mutable_grad().reset();
    });
    model->end_of_step();
  }
}

}  // namespace

int main() {
  try {
    run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  return 0;
}
