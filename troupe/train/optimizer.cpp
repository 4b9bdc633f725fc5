#include "troupe/train/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_matrix_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sign.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "troupe/checkpoint/names.h"
#include "troupe/core/check.h"
#include "troupe/ops/adamw.h"

namespace troupe {
namespace {

// A member's part of each of its bucket's buffers, flat, and its gradient.
struct Piece {
  Piece(const ParamStore& store, const Bucket& b, int64_t slot) : grad(store.grad(slot)) {
    for (const at::Tensor& buffer : b.state) state.push_back(store.part(slot, buffer));
    if (b.in_halves()) {
      copy = store.part(slot, b.own);
      low = store.part(slot, b.low);
      return;
    }
    master = store.part(slot, b.master);
    if (b.has_master()) copy = store.part(slot, b.own);
  }

  at::Tensor scaled_grad(const at::Tensor& scale) const { return grad.to(at::kFloat) * scale; }

  Piece narrowed(int64_t from, int64_t size) const {
    Piece out = *this;
    const auto cut = [&](at::Tensor& x) { x = x.narrow(0, from, size); };
    cut(out.grad);
    for (at::Tensor& x : out.state) cut(x);
    cut(*out.copy);
    cut(*out.low);
    return out;
  }

  at::Tensor master = {}, grad;  // master: none where it is in halves
  std::vector<at::Tensor> state;
  std::optional<at::Tensor> copy = {};  // the model's, of a smaller type
  std::optional<at::Tensor> low = {};   // with `copy` the master
};

// f(piece) with a master in f32, which it changes; the model's values follow. Masters in halves are
// joined and split again, a few matrices of `matrix` elements at a time.
void update_masters(const Piece& all, int64_t matrix, const std::function<void(const Piece&)>& f) {
  if (!all.low) {
    f(all);
    if (all.copy) all.copy->copy_(all.master);
    return;
  }
  constexpr int64_t kAtATime = int64_t{1} << 24;  // 64 MiB of masters
  const int64_t each = std::max<int64_t>(1, kAtATime / matrix) * matrix, n = all.grad.numel();
  for (int64_t from = 0; from < n; from += each) {
    Piece piece = all.narrowed(from, std::min(each, n - from));
    piece.master = joined(*piece.copy, *piece.low);
    f(piece);
    split(piece.master, *piece.copy, *piece.low);
  }
}

class AdamWOptimizer : public Optimizer {
 public:
  explicit AdamWOptimizer(const AdamWConfig& config) : config_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {"m", "v"}; }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    for (const int64_t slot : store.owned_members(b)) {
      const Piece p(store, b, slot);
      adamw_({.param = p.low ? *p.copy : p.master,
              .m = p.state[0],
              .v = p.state[1],
              .copy = p.low ? std::nullopt : p.copy,
              .remainder = p.low},
             p.grad, s.grad_scale, s.step,
             {.lr = s.lr,
              .beta1 = config_.betas[0],
              .beta2 = config_.betas[1],
              .eps = config_.eps,
              .weight_decay = s.weight_decay});
    }
  }

 private:
  AdamWConfig config_;
};

class Sgd : public Optimizer {
 public:
  explicit Sgd(const SgdConfig& config) : config_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {"momentum"}; }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    for (const int64_t slot : store.owned_members(b)) {
      update_masters(Piece(store, b, slot), 1, [&](const Piece& p) {
        p.state[0].mul_(config_.momentum).add_(p.scaled_grad(s.grad_scale));
        p.master.mul_(1 - s.lr * s.weight_decay).add_(p.state[0], -s.lr);
      });
    }
  }

 private:
  SgdConfig config_;
};

class Lion : public Optimizer {
 public:
  explicit Lion(const LionConfig& config) : config_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {"m"}; }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    for (const int64_t slot : store.owned_members(b)) {
      update_masters(Piece(store, b, slot), 1, [&](const Piece& p) {
        const at::Tensor g = p.scaled_grad(s.grad_scale);
        const at::Tensor& m = p.state[0];
        const at::Tensor direction = at::sign(at::lerp(m.to(at::kFloat), g, 1 - config_.betas[0]));
        p.master.mul_(1 - s.lr * s.weight_decay).add_(direction, -s.lr);
        m.mul_(config_.betas[1]).add_(g, 1 - config_.betas[1]);
      });
    }
  }

 private:
  LionConfig config_;
};

class Muon : public Optimizer {
 public:
  explicit Muon(const MuonConfig& config) : config_(config), others_(config) {}

  std::vector<std::string> state_names(const Bucket& b) const override {
    return b.key.matrix ? std::vector<std::string>{"momentum"} : others_.state_names(b);
  }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    if (!b.key.matrix) return others_.update(store, b, s);
    for (const int64_t slot : store.owned_members(b)) {
      // The last two dimensions of the box are the matrix: [E, 2, F, D] is 2 E of [F, D].
      const std::vector<int64_t>& size = store.slots()[static_cast<size_t>(slot)].named.param->size;
      const int64_t rows = size[size.size() - 2], columns = size.back();
      if (rows == 0 || columns == 0) continue;
      update_masters(Piece(store, b, slot), rows * columns, [&](const Piece& p) {
        const at::Tensor g = p.scaled_grad(s.grad_scale);
        const at::Tensor& v = p.state[0];
        v.mul_(config_.momentum).add_(g, 1 - config_.momentum);
        const at::Tensor u = at::lerp(g, v.to(at::kFloat), config_.momentum);
        const at::Tensor o = newton_schulz(u.view({-1, rows, columns}));
        const double scale = 0.2 * std::sqrt(static_cast<double>(std::max(rows, columns)));
        p.master.mul_(1 - s.lr * s.weight_decay).add_(o.reshape({-1}), -s.lr * scale);
      });
    }
  }

 private:
  MuonConfig config_;
  AdamWOptimizer others_;
};

void check_betas(const std::vector<double>& betas, std::vector<std::string>& out) {
  const auto outside = [](double b) { return !(0 <= b && b < 1); };
  if (betas.size() != 2 || std::any_of(betas.begin(), betas.end(), outside)) {
    out.emplace_back("betas must be two numbers from 0 to below 1");
  }
}

}  // namespace

std::unique_ptr<Optimizer> AdamWConfig::build() const {
  return std::make_unique<AdamWOptimizer>(*this);
}
std::unique_ptr<Optimizer> SgdConfig::build() const {
  return std::make_unique<Sgd>(*this);
}
std::unique_ptr<Optimizer> LionConfig::build() const {
  return std::make_unique<Lion>(*this);
}
std::unique_ptr<Optimizer> MuonConfig::build() const {
  return std::make_unique<Muon>(*this);
}

const OptimizerBase& base_of(const OptimizerConfig& config) {
  return std::visit([](const auto& c) -> const OptimizerBase& { return c; }, config);
}

std::vector<std::string> optimizer_faults(const OptimizerConfig& config) {
  std::vector<std::string> out;
  const OptimizerBase& base = base_of(config);
  if (!(base.lr >= 0)) out.push_back("lr " + to_text(base.lr) + " must not be negative");
  if (!(base.weight_decay >= 0)) {
    out.push_back("weight_decay " + to_text(base.weight_decay) + " must not be negative");
  }
  if (const auto* adamw = std::get_if<AdamWConfig>(&config)) check_betas(adamw->betas, out);
  if (const auto* muon = std::get_if<MuonConfig>(&config)) check_betas(muon->betas, out);
  if (const auto* lion = std::get_if<LionConfig>(&config)) check_betas(lion->betas, out);
  return out;
}

BucketKey bucket_key(const OptimizerBase& config, const NamedParam& named) {
  const Param& p = *named.param;
  BucketKey key{.matrix = p.group == Group::kMatrix && p.size.size() >= 2,
                .decay = p.group != Group::kNoDecay && p.shown.size() >= 2};
  for (const ParamGroup& group : config.groups) {
    if (!matches(group.names, named.name)) continue;
    key.lr_scale = group.lr_scale;
    key.decay = group.decay && p.group != Group::kNoDecay && p.shown.size() >= 2;
  }
  return key;
}

bool is_frozen(const OptimizerBase& config, const std::string& name) {
  bool frozen = false;
  for (const ParamGroup& group : config.groups) {
    if (matches(group.names, name)) frozen = group.frozen;
  }
  return frozen;
}

at::Tensor newton_schulz(const at::Tensor& x) {
  const bool tall = x.size(-2) > x.size(-1);
  at::Tensor y = x.to(at::kFloat);
  if (tall) y = y.transpose(-2, -1);
  y = y / (at::linalg_matrix_norm(y, "fro", {-2, -1}, /*keepdim=*/true) + 1e-7);
  for (int i = 0; i < 5; ++i) {
    const at::Tensor gram = at::matmul(y, y.transpose(-2, -1));
    const at::Tensor both = gram * -4.7750 + at::matmul(gram, gram) * 2.0315;
    y = y * 3.4445 + at::matmul(both, y);
  }
  return tall ? y.transpose(-2, -1) : y;
}

}  // namespace troupe
