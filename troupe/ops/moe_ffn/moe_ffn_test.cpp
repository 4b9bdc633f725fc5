#include "troupe/ops/moe_ffn/moe_ffn.h"

#include <ATen/Context.h>
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "troupe/core/check.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/ops/support/kept.h"
#include "troupe/testing/torch/device.h"
#include "troupe/testing/torch/jacobian.h"
#include "troupe/testing/torch/plan.h"

namespace troupe {
namespace {

using testing::Tensors;

struct Sizes {
  int64_t T, D, F, E, K;
};

struct Form {
  const char* activation = "silu";
  bool gated = true;
  bool biased = false;
  double clamp = INFINITY;
  double offset = 0;
};

at::Tensor act(const Form& form, const at::Tensor& g) {
  const std::string name = form.activation;
  if (name == "silu") return at::silu(g);
  if (name == "gelu") return at::gelu(g);
  if (name == "gelu_tanh") return at::gelu(g, "tanh");
  if (name == "quick_gelu") return g * at::sigmoid(g * 1.702);
  return name == "relu" ? at::relu(g) : at::relu(g) * at::relu(g);
}

// One layer's tensors: x, weights, w1, b1, w2, b2, in the order of gradients.
struct Layer {
  Layer(Sizes s, Form f, at::ScalarType type = at::kDouble, uint64_t seed = 3) : sizes(s), form(f) {
    at::manual_seed(seed);
    const int64_t G = form.gated ? 2 * s.F : s.F;
    const auto normal = [&](at::IntArrayRef n) { return at::randn(n, at::kDouble).to(type); };
    const at::Tensor weights = at::rand({s.T, s.K}, at::kDouble);
    tensors = {normal({s.T, s.D}),      type == at::kDouble ? weights : weights.to(at::kFloat),
               normal({s.E, G, s.D}),   form.biased ? normal({s.E, G}) : at::Tensor(),
               normal({s.E, s.D, s.F}), form.biased ? normal({s.E, s.D}) : at::Tensor()};
    for (at::Tensor& t : tensors) {
      if (t.defined()) t.requires_grad_();
    }
    ids = testing::random_ids(s.T, s.K, s.E, seed);
  }
  ExpertWeights experts(const Tensors& t) const {
    const auto given = [](const at::Tensor& b) {
      return b.defined() ? std::optional<at::Tensor>(b) : std::nullopt;
    };
    return {t[2], given(t[3]), t[4], given(t[5])};
  }
  FfnOptions options() const {
    return {.activation = form.activation, .clamp = form.clamp, .offset = form.offset};
  }
  at::Tensor run(const Tensors& t) const {
    return moe_ffn(t[0], t[1], testing::plan_of(ids, sizes.E), experts(t), options());
  }
  // The definition, token by token and slot by slot.
  at::Tensor by_definition(const Tensors& t) const {
    std::vector<at::Tensor> rows = {at::zeros({0, sizes.D}, t[0].options())};
    for (int64_t i = 0; i < sizes.T; ++i) {
      at::Tensor sum = at::zeros({1, sizes.D}, t[0].options());
      for (int64_t k = 0; k < sizes.K; ++k) {
        const int64_t e = ids.data_ptr<int32_t>()[i * sizes.K + k];
        if (e >= 0) sum = sum + t[1][i][k] * expert(t, e, t[0].slice(0, i, i + 1));
      }
      rows.push_back(sum);
    }
    return at::cat(rows);
  }
  at::Tensor expert(const Tensors& t, int64_t e, const at::Tensor& x) const {
    at::Tensor h = at::mm(x, t[2][e].t());
    if (form.biased) h = h + t[3][e];
    at::Tensor u = act(form, at::clamp(h.slice(1, 0, sizes.F), std::nullopt, form.clamp));
    if (form.gated) {
      u = u * (at::clamp(h.slice(1, sizes.F), -form.clamp, form.clamp) + form.offset);
    }
    const at::Tensor y = at::mm(u, t[4][e].t());
    return form.biased ? y + t[5][e] : y;
  }

  Sizes sizes;
  Form form;
  Tensors tensors;
  at::Tensor ids;
};

Tensors gradients_of(const at::Tensor& out, const at::Tensor& g, const Tensors& inputs,
                     bool keep = false) {
  for (const at::Tensor& t : inputs) {
    if (t.defined()) t.mutable_grad().reset();
  }
  if (out.requires_grad()) out.backward(g.to(out.options()), keep);
  Tensors grads;
  for (const at::Tensor& t : inputs) {
    if (t.defined() && !t.grad().defined()) t.mutable_grad() = at::zeros_like(t);
    grads.push_back(t.defined() ? t.grad().clone() : t);
  }
  return grads;
}

Tensors gradients(const at::Tensor& out, const Tensors& inputs) {
  at::manual_seed(11);
  return gradients_of(out, at::randn(out.sizes(), at::kDouble), inputs);
}

double relative_error(const at::Tensor& got, const at::Tensor& want) {
  if (want.numel() == 0) return 0;
  const at::Tensor w = want.to(at::kDouble);
  return ((got.to(at::kDouble) - w).abs().max() / (w.abs().max() + 1e-30)).item<double>();
}

constexpr Sizes kSizes[] = {{1, 3, 2, 1, 1},    {5, 8, 4, 3, 2},   {0, 4, 4, 2, 1},
                            {61, 16, 24, 4, 3}, {520, 7, 5, 1, 1}, {23, 33, 17, 60, 8}};
const Form kForms[] = {{"silu", true, false},
                       {"silu", true, true},
                       {"gelu", false, true},
                       {"gelu_tanh", true, false},
                       {"relu2", false, false},
                       {"relu", true, true},
                       {"quick_gelu", true, true, 0.875, 1.0}};

TEST(MoeFfn, X2_EqualsTheDefinitionForwardAndBackward) {
  for (const Sizes& sizes : kSizes) {
    for (const Form& form : kForms) {
      const Layer layer(sizes, form);
      const at::Tensor got = layer.run(layer.tensors), want = layer.by_definition(layer.tensors);
      EXPECT_LT(relative_error(got, want), 1e-12) << form.activation << " T " << sizes.T;
      const Tensors ours = gradients(got, layer.tensors), theirs = gradients(want, layer.tensors);
      for (size_t i = 0; i < ours.size(); ++i) {
        if (!ours[i].defined()) continue;
        EXPECT_LT(relative_error(ours[i], theirs[i]), 1e-11)
            << "gradient " << i << ' ' << form.activation << " T " << sizes.T;
      }
    }
  }
}

TEST(MoeFfn, X2_AgreesWithTheNumericJacobian) {
  for (const Form& form : kForms) {
    const Layer layer({5, 4, 3, 4, 2}, form);
    testing::expect_gradients([&](const Tensors& t) { return layer.run(t); }, layer.tensors);
  }
}

TEST(MoeFfn, G8_LowPrecisionStaysWithinItsTolerance) {
  for (const auto& [type, bound] :
       {std::pair(at::kFloat, 1e-5), std::pair(at::kBFloat16, 3e-2), std::pair(at::kHalf, 4e-3)}) {
    const Layer low({200, 32, 48, 8, 2}, {}, type);
    Tensors wide;
    for (const at::Tensor& t : low.tensors) {
      wide.push_back(t.defined() ? t.detach().to(at::kDouble).requires_grad_() : t);
    }
    const Tensors got = gradients(low.run(low.tensors), low.tensors);
    const Tensors want = gradients(low.by_definition(wide), wide);
    for (size_t i = 0; i < got.size(); ++i) {
      if (!got[i].defined()) continue;
      EXPECT_LT(relative_error(got[i], want[i]), bound) << type << " " << i;
    }
  }
}

TEST(MoeFfn, G4_SameBitsForAnyNumberOfThreads) {
  const Layer layer({700, 40, 24, 5, 3}, {"silu", true, true}, at::kFloat);
  const int threads = at::get_num_threads();
  std::vector<Tensors> runs;
  for (const int n : {1, 2, 3, 1}) {
    at::set_num_threads(n);
    const at::Tensor out = layer.run(layer.tensors);
    runs.push_back(gradients(out, layer.tensors));
    runs.back().push_back(out.detach());
  }
  at::set_num_threads(threads);
  for (const Tensors& run : runs) {
    for (size_t i = 0; i < run.size(); ++i) EXPECT_TRUE(run[i].equal(runs[0][i])) << i;
  }
}

TEST(MoeFfn, E2_AnExpertWithoutTokensGetsAGradientOfExactlyZero) {
  const Layer layer({6, 4, 3, 5, 2}, {"silu", true, true});
  const Tensors grads = gradients(layer.run(layer.tensors), layer.tensors);
  for (const size_t i : {2, 3, 4, 5}) {
    EXPECT_TRUE(grads[i][4].equal(at::zeros_like(grads[i][4]))) << i;
  }
}

TEST(MoeFfn, G3_MaskedSlotsAddNothing) {
  Layer layer({8, 4, 3, 3, 2}, {"silu", true, true});
  layer.ids.slice(0, 2, 4).fill_(-1);
  layer.ids[5][1].fill_(-1);
  const at::Tensor got = layer.run(layer.tensors);
  EXPECT_LT(relative_error(got, layer.by_definition(layer.tensors)), 1e-12);
  EXPECT_EQ(got.slice(0, 2, 4).abs().max().item<double>(), 0);
  const Tensors grads = gradients(got, layer.tensors);
  EXPECT_EQ(grads[1].slice(0, 2, 4).abs().max().item<double>(), 0);
  EXPECT_EQ(grads[1][5][1].item<double>(), 0);
}

TEST(MoeFfn, C1_AllTokensToOneExpertIsThatExpertsDenseFfn) {
  Layer layer({600, 8, 6, 4, 1}, {});
  layer.ids.fill_(2);
  const at::Tensor want = layer.expert(layer.tensors, 2, layer.tensors[0]) * layer.tensors[1];
  EXPECT_LT(relative_error(layer.run(layer.tensors), want), 1e-12);
}

TEST(MoeFfn, X8_EachFrozenSubsetLeavesTheOtherGradientsAsTheyWere) {
  const Layer all({40, 6, 5, 3, 2}, {"silu", true, true});
  const Tensors want = gradients(all.run(all.tensors), all.tensors);
  for (int wanted = 1; wanted < 64; ++wanted) {
    Tensors some;
    for (int i = 0; i < 6; ++i) {
      some.push_back(all.tensors[i].detach().clone().requires_grad_((wanted >> i & 1) != 0));
    }
    const at::Tensor out = all.run(some);
    at::manual_seed(11);
    out.backward(at::randn(out.sizes(), at::kDouble));
    for (int i = 0; i < 6; ++i) {
      EXPECT_EQ(some[i].grad().defined(), (wanted >> i & 1) != 0);
      if ((wanted >> i & 1) == 0) continue;
      EXPECT_TRUE(some[i].grad().equal(want[i])) << wanted << " " << i;
    }
  }
}

TEST(MoeFfn, M2_RecomputingTheHiddenRowsChangesNoBit) {
  const Layer layer({90, 12, 7, 4, 2}, {"silu", true, true}, at::kFloat);
  const Plan plan = testing::plan_of(layer.ids, 4);
  FfnOptions again = layer.options();
  again.keep_hidden = false;
  const auto run = [&](const FfnOptions& o) {
    return gradients(
        moe_ffn(layer.tensors[0], layer.tensors[1], plan, layer.experts(layer.tensors), o),
        layer.tensors);
  };
  const Tensors want = run(layer.options()), got = run(again);
  for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(got[i].equal(want[i])) << i;
}

// A graph's last backward writes dH over H; one before it does not.
TEST(MoeFfn, BackwardOfAGraphThatIsKeptIsThatOfTheLastOne) {
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const Layer layer({90, 12, 7, 4, 2}, {"silu", true, true}, type);
    const at::Tensor out = layer.run(layer.tensors), g = at::randn(out.sizes()).to(type);
    const auto run = [&](bool keep) { return gradients_of(out, g, layer.tensors, keep); };
    const Tensors first = run(true), second = run(true), last = run(false);
    for (size_t i = 0; i < first.size(); ++i) {
      EXPECT_TRUE(second[i].equal(first[i])) << i;
      EXPECT_TRUE(last[i].equal(first[i])) << i;
    }
  }
}

// A layer's tensors of another type or device, as leaves.
Tensors leaves(const Tensors& from, const at::TensorOptions& options) {
  Tensors out;
  for (const at::Tensor& t : from) {
    if (!t.defined()) {
      out.emplace_back();
    } else {
      out.push_back(t.detach().to(options).clone().requires_grad_());
    }
  }
  return out;
}

// The halves of a backward: those of weights apart, of each subset that wants a gradient.
TEST(MoeFfn, OV5_GradientsOfWeightsApartAreTheWholesBits) {
  // Two calls of MKL's f64 products over several threads differ in bits on a busy machine.
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  for (const auto type : {at::kDouble, at::kFloat, at::kBFloat16}) {
    for (const Form& form : kForms) {
      const Layer layer({90, 12, 7, 4, 2}, form, type);
      const at::Tensor g = at::randn({90, 12}, at::kDouble).to(type);
      const Plan plan = testing::plan_of(layer.ids, 4);
      for (const int wanted : {1, 2, 5, 13, 20, 33, 42, 60, 62, 63}) {
        const auto run = [&](bool apart, bool keep_hidden) {
          Tensors some = leaves(layer.tensors, type);
          some[1] = layer.tensors[1].detach().clone().requires_grad_();
          for (size_t i = 0; i < some.size(); ++i) {
            if (some[i].defined()) some[i].requires_grad_((wanted >> i & 1) != 0);
          }
          FfnOptions o = layer.options();
          o.keep_hidden = keep_hidden;
          if (apart) o.weights_order = take_backward_order();
          const at::Tensor out = moe_ffn(some[0], some[1], plan, layer.experts(some), o);
          return out.requires_grad() ? gradients_of(out, g, some) : some;
        };
        const Tensors want = run(false, true);
        for (const bool keep : {true, false}) {
          const Tensors got = run(true, keep);
          for (size_t i = 0; i < want.size(); ++i) {
            if (!want[i].defined()) continue;
            EXPECT_TRUE(got[i].equal(want[i])) << wanted << ' ' << i;
          }
        }
      }
    }
  }
  at::set_num_threads(threads);
}

// Output and gradients; a kept graph's are computed twice and must not differ.
Tensors results(const Layer& layer, const Tensors& t, const at::Tensor& g) {
  const Plan plan = testing::plan_of(layer.ids.to(t[0].device()), layer.sizes.E);
  const at::Tensor out = moe_ffn(t[0], t[1], plan, layer.experts(t), layer.options());
  const Tensors first = gradients_of(out, g, t, /*keep=*/true);
  Tensors last = gradients_of(out, g, t);
  for (size_t i = 0; i < first.size(); ++i) {
    if (!first[i].defined()) continue;
    EXPECT_TRUE(last[i].equal(first[i])) << i;
  }
  last.push_back(out.detach());
  return last;
}

struct OnAGpu {
  const char* name;
  Sizes sizes;
  Form form;
  at::ScalarType type;
  double tolerance;
};

class MoeFfnOnAGpu : public ::testing::TestWithParam<OnAGpu> {};

TEST_P(MoeFfnOnAGpu, X2_AgreesWithF64OnTheCpu) {
  if (!has_cuda()) GTEST_SKIP() << why_no_cuda();
  const OnAGpu& c = GetParam();
  const Layer layer(c.sizes, c.form, c.type);
  const at::Tensor g = at::randn({c.sizes.T, c.sizes.D}, at::kDouble).to(c.type);
  Tensors on_gpu = leaves(layer.tensors, at::TensorOptions(c10::Device(c10::kCUDA, 0)));
  const Tensors got = results(layer, on_gpu, g);
  const Tensors want = results(layer, leaves(layer.tensors, at::kDouble), g);
  for (size_t i = 0; i < want.size(); ++i) {
    if (!want[i].defined()) continue;
    const at::Tensor apart = got[i].cpu().to(at::kDouble) - want[i];
    EXPECT_LE(apart.norm().item<double>(), c.tolerance * want[i].norm().item<double>()) << i;
  }
}

std::vector<OnAGpu> on_a_gpu() {
  (void)has_cuda();  // Before any test makes PyTorch ask (ops/support/cuda_plugin.h).
  return {{"Bf16Swiglu", {300, 128, 64, 5, 2}, {}, at::kBFloat16, 1e-2},
          {"Bf16OddWidths", {90, 24, 40, 4, 2}, {}, at::kBFloat16, 1e-2},
          {"Bf16NoRows", {0, 128, 64, 5, 2}, {}, at::kBFloat16, 0},
          {"F32NoRows", {0, 128, 64, 5, 2}, {}, at::kFloat, 0},
          {"F32Swiglu", {300, 128, 64, 5, 2}, {}, at::kFloat, 1e-4},
          {"F32Biased", {90, 24, 16, 4, 2}, {"gelu", true, true}, at::kFloat, 1e-4},
          {"F32Plain", {90, 24, 16, 4, 2}, {"relu2", false}, at::kFloat, 1e-4}};
}

INSTANTIATE_TEST_SUITE_P(, MoeFfnOnAGpu, ::testing::ValuesIn(on_a_gpu()),
                         [](const auto& made) { return std::string(made.param.name); });

// Bytes of the storages that a result's node keeps, each counted once, those of `except` not.
int64_t bytes_kept(const at::Tensor& result, const Tensors& except) {
  std::map<const void*, int64_t> storages;
  for (const at::Tensor& t : kept_for_backward(result)) {
    if (t.defined()) storages[t.storage().data()] = static_cast<int64_t>(t.storage().nbytes());
  }
  for (const at::Tensor& t : except) storages.erase(t.storage().data());
  int64_t sum = 0;
  for (const auto& [start, bytes] : storages) sum += bytes;
  return sum;
}

TEST(MoeFfn, M1_BackwardKeepsXAndHAnd24BytesARow) {
  constexpr int64_t kT = 96, kD = 40, kF = 24, kE = 4, kK = 3;
  for (const bool gated : {true, false}) {
    const Layer layer({kT, kD, kF, kE, kK}, {"silu", gated}, at::kBFloat16);
    const Tensors parameters = {layer.tensors[2], layer.tensors[4]};
    const at::Tensor out = layer.run(layer.tensors);
    const int64_t x = 2 * kT * kD, h = 2 * kT * kK * kF * (gated ? 2 : 1), rows = kT * kK;
    const int64_t rest = bytes_kept(out, parameters) - x - h;
    EXPECT_GT(rest, 12 * rows);  // the scores and the plan's maps
    EXPECT_LE(rest, 24 * rows);
    // Without H, and with either in fewer bits: what is promised, no more.
    FfnOptions o = layer.options();
    o.keep_hidden = false;
    const auto kept = [&] {
      const Plan plan = testing::plan_of(layer.ids, kE);
      const ExpertWeights experts = layer.experts(layer.tensors);
      return bytes_kept(moe_ffn(layer.tensors[0], layer.tensors[1], plan, experts, o), parameters);
    };
    EXPECT_EQ(kept(), x + rest);
    o.input_bits = 4;
    EXPECT_EQ(kept(), x / 2 * 9 / 16 + rest);  // 4.5 bits an element
    o = layer.options();
    o.hidden_bits = 8;
    EXPECT_EQ(kept(), x + h / 2 * 17 / 16 + rest);  // 8.5 bits
  }
}

TEST(MoeFfn, E16_TakesAnyStrides) {
  Layer layer({12, 6, 5, 3, 2}, {});
  const at::Tensor want = layer.run(layer.tensors);
  Tensors strided = layer.tensors;
  strided[0] = layer.tensors[0].detach().t().contiguous().t();
  strided[2] = layer.tensors[2].detach().transpose(0, 2).contiguous().transpose(0, 2);
  EXPECT_TRUE(layer.run(strided).equal(want));
}

TEST(MoeFfn, NamesTheArgumentThatIsWrong) {
  const Layer layer({4, 6, 5, 3, 2}, {"silu", true, true});
  const auto with = [&](size_t i, const at::Tensor& t) {
    Tensors changed = layer.tensors;
    changed[i] = t;
    return testing::refusal([&] { layer.run(changed); });
  };
  const auto& t = layer.tensors;
  EXPECT_NE(with(1, t[1].slice(0, 1)).find("moe_ffn: weights must have sizes"), std::string::npos);
  EXPECT_NE(with(2, t[2].slice(2, 1)).find("moe_ffn: w1 must have sizes"), std::string::npos);
  EXPECT_NE(with(3, t[3].slice(1, 1)).find("moe_ffn: b1 must have sizes"), std::string::npos);
  EXPECT_NE(with(4, t[4].slice(1, 1)).find("moe_ffn: w2 must have sizes"), std::string::npos);
  EXPECT_NE(with(5, t[5].slice(0, 1)).find("moe_ffn: b2 must have sizes"), std::string::npos);
  EXPECT_NE(with(2, t[2].to(at::kFloat)).find("must be of type Double"), std::string::npos);
  EXPECT_NE(with(1, t[1].to(at::kFloat)).find("moe_ffn: weights must be of type Double"),
            std::string::npos);
}

}  // namespace
}  // namespace troupe
