#include "troupe/train/optim/optimizer.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/lerp.h>
#include <ATen/ops/linalg_matrix_norm.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/sign.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "troupe/checkpoint/names.h"
#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/ops/adamw.h"
#include "troupe/ops/support/view.h"
#include "troupe/train/optim/adafactor.h"
#include "troupe/train/optim/matrix_parts.h"
#include "troupe/train/optim/param_slice.h"
#include "troupe/train/optim/soap.h"

namespace troupe {
namespace {

class AdamWOptimizer : public Optimizer {
 public:
  explicit AdamWOptimizer(const AdamWConfig& config) : config_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {"m", "v"}; }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    for (const int64_t slot : store.owned_members(b)) {
      const ParamSlice p(store, b, slot);
      adamw_({.param = p.low ? *p.copy : p.master,
              .m = p.state[0],
              .v = p.state[1],
              .copy = p.low ? std::nullopt : p.copy,
              .remainder = p.low,
              .m_scale = p.scales.empty() ? std::nullopt : std::optional(p.scales[0]),
              .v_scale = p.scales.empty() ? std::nullopt : std::optional(p.scales[1])},
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
      update_masters(ParamSlice(store, b, slot), 1, [&](const ParamSlice& p, int64_t) {
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
      update_masters(ParamSlice(store, b, slot), 1, [&](const ParamSlice& p, int64_t) {
        const at::Tensor g = p.scaled_grad(s.grad_scale);
        const at::Tensor& m = p.state[0];
        const at::Tensor direction =
            at::sign(at::lerp(m.to(wide_type(m)), g, 1 - config_.betas[0]));
        p.master.mul_(1 - s.lr * s.weight_decay).add_(direction, -s.lr);
        m.mul_(config_.betas[1]).add_(g, 1 - config_.betas[1]);
      });
    }
  }

 private:
  LionConfig config_;
};

// The matrices in a parameter's box: its last two dimensions are a matrix, the others count them. A
// box with fewer dimensions holds a vector, or one vector per expert.
struct Matrices {
  explicit Matrices(const Param& p) {
    const size_t fewest = p.per_expert ? 3 : 2;
    if (p.size.size() < fewest) {
      columns = p.size.empty() ? 1 : p.size.back();
      return;
    }
    whole = true;
    rows = p.size[p.size.size() - 2], columns = p.size.back();
  }
  bool whole = false;  // matrices and not vectors
  int64_t rows = 1, columns = 1;
  int64_t numel() const { return rows * columns; }
};

class Muon : public Optimizer {
 public:
  explicit Muon(const MuonConfig& config) : config_(config), others_(config) {}

  std::vector<std::string> state_names(const Bucket& b) const override {
    return b.key.matrix ? std::vector<std::string>{"momentum"} : others_.state_names(b);
  }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    if (!b.key.matrix) return others_.update(store, b, s);
    if (b.sharers.owners->size() > 1 || b.sharers.parts->size() > 1) {
      return update_cut(store, b, s);
    }
    for (const int64_t slot : store.owned_members(b)) {
      const Matrices shape(*store.slots()[static_cast<size_t>(slot)].named.param);
      if (shape.numel() == 0) continue;
      update_masters(ParamSlice(store, b, slot), shape.numel(), [&](const ParamSlice& p, int64_t) {
        const at::Tensor u = direction(p.state[0], p.scaled_grad(s.grad_scale));
        apply(p.master, orthogonal(u, shape), shape, s);
      });
    }
  }

 private:
  at::Tensor direction(const at::Tensor& v, const at::Tensor& g) const {
    v.mul_(config_.momentum).add_(g, 1 - config_.momentum);
    return at::lerp(g, v.to(at::kFloat), config_.momentum);
  }

  static at::Tensor orthogonal(const at::Tensor& u, const Matrices& shape) {
    return newton_schulz(u.view({-1, shape.rows, shape.columns})).reshape({-1});
  }

  static void apply(const at::Tensor& master, const at::Tensor& o, const Matrices& shape,
                    const UpdateStep& s) {
    const auto longest = static_cast<double>(std::max(shape.rows, shape.columns));
    master.mul_(1 - s.lr * s.weight_decay).add_(o, -s.lr * 0.2 * std::sqrt(longest));
  }

  // Matrices [first, end) of a parameter, of which this rank owns elements [from, to) of its box.
  struct Some {
    int64_t slot, first, end, from, to;
    Matrices shape;  // of the box
  };

  // The matrices of each parameter that this rank owns a part of, some at a time.
  static std::vector<Some> owned_matrices(const ParamStore& store, const Bucket& b) {
    std::vector<Some> out;
    for (const int64_t slot : store.owned_members(b)) {
      const Matrices shape(*store.slots()[static_cast<size_t>(slot)].named.param);
      const OwnedRange range = store.owned(slot);
      const int64_t n = shape.numel(), end = range.from + range.size;
      for (int64_t from = range.from; n > 0 && from < end;) {
        const int64_t first = from / n, last = std::min(first + at_a_time(n), (end + n - 1) / n);
        const int64_t to = std::min(end, last * n);
        out.push_back({slot, first, last, from, to, shape});
        from = to;
      }
    }
    return out;
  }

  // u of the whole boxes, which ranks that share the state out gather.
  at::Tensor directions(const ParamStore& store, const Bucket& b, const UpdateStep& s) const {
    if (b.sharers.owners->size() > 1) {
      const at::Tensor own = direction(b.state[0], b.grad * s.grad_scale);
      const at::Tensor all = at::empty({b.size}, own.options());
      b.sharers.owners->all_gather({all}, {own}).wait();
      return all;
    }
    const at::Tensor all = at::zeros({b.size}, b.own.options().dtype(at::kFloat));
    for (const int64_t slot : store.owned_members(b)) {
      const ParamSlice p(store, b, slot);
      const int64_t offset = store.slots()[static_cast<size_t>(slot)].offset;
      all.narrow(0, offset, p.grad.numel())
          .copy_(direction(p.state[0], p.scaled_grad(s.grad_scale)));
    }
    return all;
  }

  // Ranks own parts of matrices: u is gathered whole, and each rank makes the O that it owns a part
  // of, so that no more than two ranks make the same one. Where boxes are parts themselves, the
  // ranks with the others make O together, each of some matrices.
  void update_cut(const ParamStore& store, const Bucket& b, const UpdateStep& s) const {
    const at::Tensor all = directions(store, b, s);
    const bool parts = b.sharers.parts->size() > 1;
    const std::vector<Some> work = owned_matrices(store, b);
    const auto u_of = [&](const Some& m) {
      const int64_t n = m.shape.numel();
      const int64_t offset = store.slots()[static_cast<size_t>(m.slot)].offset + m.first * n;
      return all.narrow(0, offset, (m.end - m.first) * n).view({-1, m.shape.rows, m.shape.columns});
    };
    if (parts) {  // O in u's place
      std::vector<MatrixParts> own;
      for (const Some& m : work) own.push_back({u_of(m), cut_dim(store, b, m)});
      map_whole_matrices(*b.sharers.parts, own, newton_schulz);
    }
    for (const Some& m : work) {
      const at::Tensor o = parts ? u_of(m) : newton_schulz(u_of(m));
      const at::Tensor owned =
          o.reshape({-1}).narrow(0, m.from - m.first * m.shape.numel(), m.to - m.from);
      const auto& param = *store.slots()[static_cast<size_t>(m.slot)].named.param;
      const ParamSlice piece(store, b, m.slot);
      update_masters(piece.narrowed(m.from - store.owned(m.slot).from, m.to - m.from), 1,
                     [&](const ParamSlice& p, int64_t at) {
                       apply(p.master, owned.narrow(0, at, p.master.numel()), whole_matrices(param),
                             s);
                     });
    }
  }

  static Matrices whole_matrices(const Param& p) {
    Matrices out(p);
    out.rows = p.global[p.global.size() - 2], out.columns = p.global.back();
    return out;
  }

  // The dimension of [n, r, c] that the ranks cut.
  static int64_t cut_dim(const ParamStore& store, const Bucket& b, const Some& m) {
    const NamedParam& named = store.slots()[static_cast<size_t>(m.slot)].named;
    const Param& p = *named.param;
    const Matrices whole = whole_matrices(p);
    const int64_t ranks = b.sharers.parts->size(), rank = b.sharers.parts->rank();
    const int64_t dim = whole.rows != m.shape.rows ? 1 : 2;
    const size_t at = p.size.size() - 3 + static_cast<size_t>(dim);
    const int64_t cut = dim == 1 ? whole.columns / m.shape.columns : whole.rows / m.shape.rows;
    TROUPE_CHECK(
        cut == 1 && p.size[at] * ranks == p.global[at] && p.offset[at] == rank * p.size[at],
        "muon:", named.name, "has rows or columns", p.offset[at], "to", p.offset[at] + p.size[at],
        "of", p.global[at], "on rank", rank, "of", ranks);
    return dim;
  }

  MuonConfig config_;
  AdamWOptimizer others_;
};

class Adafactor : public Optimizer {
 public:
  explicit Adafactor(const AdafactorConfig& config) : config_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {}; }

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

class Soap : public Optimizer {
 public:
  explicit Soap(const SoapConfig& config) : config_(config), others_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {"m", "v"}; }

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
    if (!b.key.matrix) return others_.update(store, b, s);
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
std::unique_ptr<Optimizer> AdafactorConfig::build() const {
  return std::make_unique<Adafactor>(*this);
}
std::unique_ptr<Optimizer> SoapConfig::build() const {
  return std::make_unique<Soap>(*this);
}

at::ScalarType scalar_type(MomentType type) {
  if (type == MomentType::kInt8) return at::kByte;
  return type == MomentType::kF32 ? at::kFloat : at::kBFloat16;
}

double bytes_of(MomentType type) {
  if (type == MomentType::kInt8) return 1 + 4.0 / kMomentBlock;
  return type == MomentType::kF32 ? 4 : 2;
}

void make_state(const Optimizer& optimizer, MomentType moments, ParamStore& store) {
  for (Bucket& b : store.buckets()) {
    const at::TensorOptions options = b.own.options();
    for (size_t i = 0; i < optimizer.state_names(b).size(); ++i) {
      const at::ScalarType type = b.dtype == at::kDouble ? b.dtype : scalar_type(moments);
      b.state.push_back(at::zeros({b.own_size}, options.dtype(type)));
      if (moments != MomentType::kInt8) continue;
      b.scales.push_back(at::zeros({moment_blocks(b.own_size)}, options.dtype(at::kFloat)));
    }
    for (const int64_t s : b.members) {
      ParamStore::Slot& slot = store.slots()[static_cast<size_t>(s)];
      for (const SlotState& state : optimizer.slot_states(*slot.named.param, b.key)) {
        slot.state.push_back(
            at::zeros(state_like(*slot.named.param, state.extent).size, options.dtype(at::kFloat)));
      }
    }
  }
}

Param state_like(const Param& p, Extent extent) {
  Param out;
  out.per_expert = p.per_expert;
  out.experts = p.experts;
  out.global = p.global, out.offset = p.offset, out.size = p.size;
  if (extent == Extent::kEach) return out;
  const size_t row = p.size.size() - 2, column = row + 1;
  const bool of_rows = extent == Extent::kRows || extent == Extent::kRowsRows;
  const size_t kept = of_rows ? row : column, other = of_rows ? column : row;
  TROUPE_CHECK(p.size[row] == p.global[row] && p.size[column] == p.global[column],
               "an optimizer of whole matrices has a part of one");
  const bool single = extent == Extent::kRows || extent == Extent::kColumns;
  for (std::vector<int64_t>* const sizes : {&out.global, &out.offset, &out.size}) {
    if (single) {
      sizes->erase(sizes->begin() + static_cast<std::ptrdiff_t>(other));
    } else {
      (*sizes)[other] = (*sizes)[kept];
    }
  }
  return out;
}

bool needs_whole_matrices(const OptimizerConfig& config) {
  return std::holds_alternative<MuonConfig>(config) || needs_whole_state(config);
}

bool needs_whole_state(const OptimizerConfig& config) {
  return std::holds_alternative<AdafactorConfig>(config) ||
         std::holds_alternative<SoapConfig>(config);
}

bool has_state_by_element(const OptimizerConfig& config) {
  return base_of(config).moments != MomentType::kInt8 && !needs_whole_state(config);
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
  if (const auto* soap = std::get_if<SoapConfig>(&config)) {
    check_betas(soap->betas, out);
    if (soap->every < 1) out.push_back("every " + to_text(soap->every) + " must be at least 1");
    if (soap->max_side < 0) out.emplace_back("max_side must not be negative");
  }
  if (const auto* adafactor = std::get_if<AdafactorConfig>(&config)) {
    if (!(adafactor->beta2_decay <= 0)) out.emplace_back("beta2_decay must not be positive");
    if (!(adafactor->eps >= 0)) out.emplace_back("eps must not be negative");
    if (!(adafactor->clip > 0)) out.emplace_back("clip must be positive");
    if (base.moments != MomentType::kF32) {
      out.emplace_back("moments: adafactor's rows and columns are f32");
    }
  }
  if (base.moments == MomentType::kInt8 &&
      (std::holds_alternative<MuonConfig>(config) || std::holds_alternative<SoapConfig>(config))) {
    out.emplace_back("moments int8 is of adamw, sgd and lion; here f32 or bf16");
  }
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
