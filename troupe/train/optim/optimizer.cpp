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

#include "troupe/checkpoint/files/names.h"
#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/ops/adamw.h"
#include "troupe/ops/support/view.h"
#include "troupe/train/optim/matrices.h"
#include "troupe/train/optim/matrix_parts.h"
#include "troupe/train/optim/param_slice.h"

namespace troupe {
namespace {

class AdamWOptimizer : public Optimizer {
 public:
  explicit AdamWOptimizer(const AdamWConfig& config) : config_(config) {}

  std::vector<std::string> state_names(const Bucket&) const override { return {"m", "v"}; }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    for (const int64_t slot : store.owned_members(b)) {
      const ParamSlice p(store, b, slot);
      const AdamWTensors tensors{
          .param = p.low ? *p.copy : p.master,
          .m = p.state[0],
          .v = p.state[1],
          .copy = p.low ? std::nullopt : p.copy,
          .remainder = p.low,
          .m_scale = p.scales.empty() ? std::nullopt : std::optional(p.scales[0]),
          .v_scale = p.scales.empty() ? std::nullopt : std::optional(p.scales[1])};
      if (s.constants.defined()) {
        adamw_(tensors, p.grad, s.grad_scale, s.constants);
      } else {
        adamw_(tensors, p.grad, s.grad_scale, s.step, options(s));
      }
    }
  }

  std::vector<float> constants(const UpdateStep& s) const override {
    return adamw_constants(s.step, options(s));
  }

 private:
  AdamWOptions options(const UpdateStep& s) const {
    return {.lr = s.lr,
            .beta1 = config_.betas[0],
            .beta2 = config_.betas[1],
            .eps = config_.eps,
            .weight_decay = s.weight_decay};
  }

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

class Muon : public Optimizer {
 public:
  explicit Muon(const MuonConfig& config) : config_(config), others_(config) {}

  std::vector<std::string> state_names(const Bucket& b) const override {
    return b.key.matrix ? std::vector<std::string>{"momentum"} : others_.state_names(b);
  }

  bool by_element(const Bucket& b) const override { return !b.key.matrix; }

  void update(const ParamStore& store, Bucket& b, const UpdateStep& s) override {
    if (!b.key.matrix) return others_.update(store, b, s);
    if (b.mesh.shard->size() > 1 || b.mesh.parts->size() > 1) {
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
    if (b.mesh.shard->size() > 1) {
      const at::Tensor own = direction(b.state[0], b.grad * s.grad_scale);
      const at::Tensor all = at::empty({b.size}, own.options());
      b.mesh.shard->all_gather({all}, {own}).wait();
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
    const bool parts = b.mesh.parts->size() > 1;
    const std::vector<Some> work = owned_matrices(store, b);
    const auto u_of = [&](const Some& m) {
      const int64_t n = m.shape.numel();
      const int64_t offset = store.slots()[static_cast<size_t>(m.slot)].offset + m.first * n;
      return all.narrow(0, offset, (m.end - m.first) * n).view({-1, m.shape.rows, m.shape.columns});
    };
    if (parts) {  // O in u's place
      std::vector<MatrixParts> own;
      for (const Some& m : work) own.push_back({u_of(m), cut_dim(store, b, m)});
      map_whole_matrices(*b.mesh.parts, own, newton_schulz);
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
    const int64_t ranks = b.mesh.parts->size(), rank = b.mesh.parts->rank();
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

void check_betas(const std::vector<double>& betas, std::vector<std::string>& out) {
  const auto outside = [](double b) { return !(0 <= b && b < 1); };
  if (betas.size() != 2 || std::any_of(betas.begin(), betas.end(), outside)) {
    out.emplace_back("betas must be two numbers from 0 to below 1");
  }
}

}  // namespace

void AdamWConfig::add_faults(std::vector<std::string>& out) const {
  check_betas(betas, out);
}
void LionConfig::add_faults(std::vector<std::string>& out) const {
  check_betas(betas, out);
}

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
      b.state.push_back(store.state_zeros(b.own_size, type));
      if (moments != MomentType::kInt8) continue;
      b.scales.push_back(store.state_zeros(moment_blocks(b.own_size), at::kFloat));
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
  const bool matrices = std::visit(
      []<class C>(const C&) {
        return requires {
          C::kWholeMatrices;
        };
      },
      config);
  return matrices || needs_whole_state(config);
}

bool needs_whole_state(const OptimizerConfig& config) {
  return std::visit(
      []<class C>(const C&) {
        return requires {
          C::kWholeState;
        };
      },
      config);
}

bool update_in_graph(const OptimizerConfig& config) {
  return config.kind() == AdamWConfig::kKind;
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
  std::visit(
      [&]<class C>(const C& c) {
        if constexpr (requires { c.add_faults(out); }) c.add_faults(out);
        if constexpr (requires { C::kInt8; }) {
          if (!C::kInt8 && base.moments == MomentType::kInt8) {
            out.emplace_back("moments int8 is of adamw, sgd and lion; here f32 or bf16");
          }
        }
      },
      config);
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
