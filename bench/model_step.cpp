// Trains a model on random tokens, one step for each line on stdin, and answers with the step's
// seconds: bench/cpu_step.py times it beside others.
//   model_step CONFIG.yaml ROWS TOKENS
// A step is what a trainer does on one rank: units forward, units backward in turn, the norm of the
// gradients, AdamW.
#include <ATen/core/grad_mode.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros_like.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>

#include "troupe/core/config.h"
#include "troupe/nn/loss_edge.h"
#include "troupe/nn/models/model.h"
#include "troupe/ops/adamw.h"
#include "troupe/ops/autograd.h"
#include "troupe/ops/grad_norm.h"

namespace troupe {
namespace {

struct Trained {
  at::Tensor value, m, v;
};

class Bench {
 public:
  Bench(const ModelConfig& config, int64_t rows, int64_t tokens) : model_(build_model(config)) {
    const at::Tensor ids = at::randint(config.vocab, {rows, tokens + 1}, at::kLong);
    batch_ = {.ids_BS = ids.narrow(1, 0, tokens).contiguous(),
              .labels_BS = ids.narrow(1, 1, tokens).contiguous()};
    model_->for_each_param(-1, [&](const std::string& name, Param& p) {
      initialise(p, name, 1);
      if (!p.trainable()) return;
      trained_.push_back({p.value, at::zeros_like(p.value), at::zeros_like(p.value)});
    });
  }

  double step() {
    const auto begin = std::chrono::steady_clock::now();
    forward_and_backward();
    update();
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  double loss() const { return loss_; }

 private:
  void forward_and_backward() {
    const Context context = {.training = true, .step = step_};
    TensorList in, out;
    at::Tensor h;
    UnitResult r;
    for (int64_t u = 0; u < model_->num_units(); ++u) {
      in.push_back(h.defined() ? h.detach().requires_grad_() : h);
      r = model_->forward(u, in.back(), batch_, context);
      h = r.h;
      for (const MoeLoss& l : r.losses) h = with_loss(h, l.value, 1);
      out.push_back(h);
    }
    const at::Tensor loss = r.loss_sum.div(r.weight_sum);
    loss_ = loss.item<double>();
    loss.backward();
    for (size_t u = out.size() - 1; u-- > 0;) {
      out[u].backward(in[u + 1].grad());
      in[u + 1] = out[u] = at::Tensor();
    }
    model_->end_of_step();
  }

  void update() {
    TensorList grads;
    for (const Trained& t : trained_) grads.push_back(t.value.grad());
    const auto [scale, norm] = clip_scale(sum_squares(grads), 1.0);
    ++step_;
    for (size_t i = 0; i < trained_.size(); ++i) {
      const Trained& t = trained_[i];
      adamw_({t.value.detach(), t.m, t.v}, grads[i], scale, step_,
             {.lr = 1e-3, .weight_decay = 0.1});
      t.value.mutable_grad().reset();
    }
  }

  std::unique_ptr<Model> model_;
  Batch batch_;
  std::vector<Trained> trained_;
  int64_t step_ = 0;
  double loss_ = 0;
};

void run(char** argv) {
  ModelConfig config;
  read_config(load_yaml(argv[1]), config);
  Bench bench(config, std::atoll(argv[2]), std::atoll(argv[3]));
  for (std::string line; std::getline(std::cin, line);) {
    const double seconds = bench.step();
    std::printf("%.6f %.6f\n", seconds, bench.loss());
    std::fflush(stdout);
  }
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: model_step CONFIG.yaml ROWS TOKENS\n"), 2;
  try {
    troupe::run(argv);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
  return 0;
}
