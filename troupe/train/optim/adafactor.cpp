#include "troupe/train/optim/adafactor.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <cmath>

#include "troupe/train/optim/matrices.h"
#include "troupe/train/optim/param_slice.h"

namespace troupe {
namespace {

constexpr double kEps = 0x1p-23;

double weight(const AdafactorStep& s) {
  return std::pow(static_cast<double>(s.step), s.beta2_decay);
}

at::Tensor rms(const at::Tensor& x) {  // of each matrix, [N, 1, 1]
  return x.square().mean({1, 2}, /*keepdim=*/true).sqrt_();
}

// `u` begins as V.
void apply(const at::Tensor& p, const at::Tensor& g, at::Tensor u, const AdafactorStep& s) {
  u.clamp_min_(kEps * kEps).rsqrt_().mul_(g);
  const double rho = std::min(s.lr, 1 / std::sqrt(static_cast<double>(s.step)));
  const at::Tensor rate = rms(p).clamp_min_(s.eps).mul_(rho);
  const at::Tensor over = rms(u).div_(s.clip).clamp_min_(1);
  p.mul_(1 - s.lr * s.weight_decay).sub_(u.mul_(rate / over));
}

}  // namespace

void adafactor_matrices(const at::Tensor& p, const at::Tensor& g, const at::Tensor& row,
                        const at::Tensor& column, const AdafactorStep& s) {
  if (p.numel() == 0) return;
  const at::Tensor square = g.square();
  row.lerp_(square.mean(2), weight(s));
  column.lerp_(square.mean(1), weight(s));
  const at::Tensor mean = row.mean(1, /*keepdim=*/true).clamp_min_(kEps);
  apply(p, g, (row / mean).unsqueeze(2) * column.unsqueeze(1), s);
}

void adafactor_vectors(const at::Tensor& p, const at::Tensor& g, const at::Tensor& variance,
                       const AdafactorStep& s) {
  if (p.numel() == 0) return;
  variance.lerp_(g.squeeze(1).square(), weight(s));
  apply(p, g, variance.unsqueeze(1).clone(), s);
}

namespace {

class Adafactor : public Optimizer {
 public:
  explicit Adafactor(const AdafactorConfig& config) : config_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {}; }

  bool by_element(const Bucket&) const override { return false; }

  std::vector<SlotState> slot_states(const Param& p, const BucketKey&) const override {
    if (!Matrices(p).whole) return {{"variance", Extent::kEach}};
    return {{"row", Extent::kRows}, {"column", Extent::kColumns}};
  }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    const AdafactorStep step{.step = s.step,
                             .lr = s.lr,
                             .weight_decay = s.weight_decay,
                             .beta2_decay = config_.beta2_decay,
                             .eps = config_.eps,
                             .clip = config_.clip};
    for (const int64_t slot : store.owned_members(b)) {
      const ParamStore::Slot& own = store.slots()[static_cast<size_t>(slot)];
      const Matrices shape(*own.named.param);
      update_masters(ParamSlice(store, b, slot), shape.numel(),
                     [&](const ParamSlice& p, int64_t from) {
                       const std::vector<int64_t> sizes = {-1, shape.rows, shape.columns};
                       const at::Tensor master = p.master.view(sizes);
                       const at::Tensor g = p.scaled_grad(s.grad_scale).view(sizes);
                       const auto of = [&](size_t i, int64_t each) {  // the piece's part of a state
                         const int64_t n = master.size(0);
                         return own.state[i].view({-1, each}).narrow(0, from / shape.numel(), n);
                       };
                       if (!shape.whole)
                         return adafactor_vectors(master, g, of(0, shape.columns), step);
                       adafactor_matrices(master, g, of(0, shape.rows), of(1, shape.columns), step);
                     });
    }
  }

 private:
  AdafactorConfig config_;
};

}  // namespace

std::unique_ptr<Optimizer> AdafactorConfig::build() const {
  return std::make_unique<Adafactor>(*this);
}

void AdafactorConfig::add_faults(std::vector<std::string>& out) const {
  if (!(beta2_decay <= 0)) out.emplace_back("beta2_decay must not be positive");
  if (!(eps >= 0)) out.emplace_back("eps must not be negative");
  if (!(clip > 0)) out.emplace_back("clip must be positive");
  if (moments != MomentType::kF32) {
    out.emplace_back("moments: adafactor's rows and columns are f32");
  }
}

}  // namespace troupe
