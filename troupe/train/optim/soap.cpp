#include "troupe/train/optim/soap.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/linalg_eigh.h>
#include <ATen/ops/linalg_qr.h>
#include <ATen/ops/matmul.h>

#include <cmath>
#include <utility>

#include "troupe/train/optim/matrices.h"
#include "troupe/train/optim/param_slice.h"

namespace troupe {
namespace {

at::Tensor transposed(const at::Tensor& x) {
  return x.transpose(-2, -1);
}

// Ql^T x Qr, or (back) Ql x Qr^T.
at::Tensor rotated(const at::Tensor& x, const SoapSide& left, const SoapSide& right, bool back) {
  at::Tensor out = x;
  if (left.basis.defined()) out = at::matmul(back ? left.basis : transposed(left.basis), out);
  if (right.basis.defined()) out = at::matmul(out, back ? transposed(right.basis) : right.basis);
  return out;
}

void add_to_factors(const at::Tensor& g, const SoapSide& left, const SoapSide& right, double w) {
  if (left.factor.defined()) left.factor.lerp_(at::matmul(g, transposed(g)), w);
  if (right.factor.defined()) right.factor.lerp_(at::matmul(transposed(g), g), w);
}

void refresh(const SoapSide& side, bool first) {
  if (!side.factor.defined()) return;
  side.basis.copy_(first ? std::get<1>(at::linalg_eigh(side.factor))
                         : std::get<0>(at::linalg_qr(at::matmul(side.factor, side.basis))));
}

}  // namespace

void soap_matrices(const SoapMatrices& x, const SoapStep& s) {
  const auto& [p, g, m, v, left, right] = x;
  if (p.numel() == 0) return;
  const bool first = s.step == 1;
  p.mul_(1 - s.lr * s.weight_decay);
  if (!first) {
    m.lerp_(g, 1 - s.beta1);
    v.lerp_(rotated(g, left, right, false).square(), 1 - s.beta2);
    const auto t = static_cast<double>(s.step - 1);
    const double unbias1 = 1 / (1 - std::pow(s.beta1, t)), unbias2 = 1 / (1 - std::pow(s.beta2, t));
    const at::Tensor n =
        rotated(m, left, right, false).mul(unbias1).div_((v * unbias2).sqrt_().add_(s.eps));
    p.sub_(rotated(n, left, right, true), s.lr);
  }
  add_to_factors(g, left, right, 1 - s.beta2);
  if (!first && s.step % s.every != 0) return;
  refresh(left, first);
  refresh(right, first);
}

namespace {

class Soap : public Optimizer {
 public:
  explicit Soap(const SoapConfig& config) : config_(config), others_(config.AdamWConfig::build()) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {"m", "v"}; }

  bool by_element(const Bucket& b) const override { return !b.key.matrix; }

  std::vector<SlotState> slot_states(const Param& p, const BucketKey& key) const override {
    std::vector<SlotState> out;
    if (!key.matrix) return out;
    const Matrices shape(p);
    if (shape.rows <= config_.max_side) {
      out.push_back({"left", Extent::kRowsRows});
      out.push_back({"left_basis", Extent::kRowsRows});
    }
    if (shape.columns <= config_.max_side) {
      out.push_back({"right", Extent::kColumnsColumns});
      out.push_back({"right_basis", Extent::kColumnsColumns});
    }
    return out;
  }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    if (!b.key.matrix) return others_->update(store, b, s);
    const SoapStep step{.step = s.step,
                        .lr = s.lr,
                        .weight_decay = s.weight_decay,
                        .beta1 = config_.betas[0],
                        .beta2 = config_.betas[1],
                        .eps = config_.eps,
                        .every = config_.every};
    for (const int64_t slot : store.owned_members(b)) {
      const ParamStore::Slot& own = store.slots()[static_cast<size_t>(slot)];
      const Matrices shape(*own.named.param);
      if (shape.numel() == 0) continue;
      update_masters(
          ParamSlice(store, b, slot), shape.numel(), [&](const ParamSlice& p, int64_t from) {
            const std::vector<int64_t> sizes = {-1, shape.rows, shape.columns};
            const at::Tensor master = p.master.view(sizes);
            size_t next = 0;
            const auto side = [&](int64_t length) {
              if (length > config_.max_side) return SoapSide{};
              const auto part = [&](const at::Tensor& x) {
                const at::Tensor all = x.view({-1, length, length});
                return all.narrow(0, from / shape.numel(), master.size(0));
              };
              const size_t at = std::exchange(next, next + 2);
              return SoapSide{part(own.state[at]), part(own.state[at + 1])};
            };
            const SoapSide left = side(shape.rows), right = side(shape.columns);
            const at::Tensor m = p.state[0].to(at::kFloat), v = p.state[1].to(at::kFloat);
            soap_matrices({.p = master,
                           .g = p.scaled_grad(s.grad_scale).view(sizes),
                           .m = m.view(sizes),
                           .v = v.view(sizes),
                           .left = left,
                           .right = right},
                          step);
            p.state[0].copy_(m);
            p.state[1].copy_(v);
          });
    }
  }

 private:
  SoapConfig config_;
  const std::unique_ptr<Optimizer> others_;  // adamw
};

}  // namespace

std::unique_ptr<Optimizer> SoapConfig::build() const {
  return std::make_unique<Soap>(*this);
}

void SoapConfig::add_faults(std::vector<std::string>& out) const {
  AdamWConfig::add_faults(out);
  if (every < 1) out.push_back("every " + to_text(every) + " must be at least 1");
  if (max_side < 0) out.emplace_back("max_side must not be negative");
}

}  // namespace troupe
