// Low-rank adapters (LoRA): a product of a frozen matrix and two small trained factors beside it,
//
//   y = W x + s B (A d(x))   A [r, in], B [out, r];  s = alpha / r, or alpha / sqrt(r) with rslora
//
// The factors are multiplied apart from W: W + s B A is made nowhere in training. A starts uniform
// in +-1 / sqrt(in), as PEFT's does, and B at zero, so that a new model computes what its base does.
// In training d drops elements of the input of A, not of W; each adapter has its own mask
// (nn/parts/dropout.h).
//
// With DoRA each row has a trained magnitude M beside it, which starts as the row's norm:
//
//   y = g (W x + s B A x),   g [out] = M / ||W + s B A||,   M = ||W|| + m,   m zero at first
//
// The norms are of rows, and constants of the gradient, as in PEFT. m is what is trained and saved;
// its gradient is M's. Where d drops, y = W x + (g - 1) W d(x) + g s B A d(x), as PEFT has it.
//
// Where tensor ranks cut the rows of W, they cut those of B, and have A whole; where they cut its
// columns, they cut those of A, and have B whole. The sums over the ranks that W's product and the
// gradients of whole parameters take are theirs too.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/distributed/params/param.h"
#include "troupe/nn/parts/context.h"
#include "troupe/nn/parts/dropout.h"

namespace troupe {

struct LoraConfig {
  int64_t rank = 0;  // r; 0: none
  double alpha = 16;
  bool rslora = false;
  double dropout = 0;  // of the adapter's input, in training
  bool dora = false;   // of model.lora alone, which reads it

  static void visit(auto& c, auto&& f) {
    f("rank", c.rank, "Adapter rank; 0: off.");
    f("alpha", c.alpha, "Adapter scale: alpha / rank.");
    f("rslora", c.rslora, "Divides alpha by sqrt(rank), not by rank.");
    f("dropout", c.dropout, "Dropout of the adapters' input in training (0 to below 1).");
  }
  bool on() const { return rank > 0; }
  double scale() const;  // s
};

enum class LoraTarget { kAttention, kExperts, kShared, kRouter, kFfn };
constexpr auto names_of(LoraTarget) {
  return std::array{Named{"attention", LoraTarget::kAttention},
                    Named{"experts", LoraTarget::kExperts}, Named{"shared", LoraTarget::kShared},
                    Named{"router", LoraTarget::kRouter}, Named{"ffn", LoraTarget::kFfn}};
}

// Frozen matrices that are kept in few bits (ops/low_bit.h, QLoRA): products unpack them where they
// multiply. Checkpoints do not hold them; they come from checkpoint.init_from, or as they are drawn.
struct FrozenBits {
  LowBitFormat format = LowBitFormat::kNf4;
  std::vector<LoraTarget> targets = {LoraTarget::kExperts};

  static void visit(auto& c, auto&& f) {
    f("format", c.format, "nf4 or mxfp4 (4 bits), int8 or fp8 (8 bits), with scales of groups.");
    f("targets", c.targets,
      "Matrices in few bits: attention, experts, shared (experts), ffn (dense layers).");
  }
};

// Adapters of a whole model, whose other weights are frozen.
struct ModelLora {
  LoraConfig factors;
  std::vector<LoraTarget> targets = {LoraTarget::kAttention};
  std::optional<FrozenBits> frozen = {};  // absent: all in the run's type

  static void visit(auto& c, auto&& f) {
    LoraConfig::visit(c.factors, f);
    f("dora", c.factors.dora,
      "Trains the norm of each adapted row beside its direction (DoRA); of attention, shared, "
      "ffn.");
    f("targets", c.targets,
      "Adapted matrices: attention, experts, shared (experts), router, ffn (dense layers).");
    f("frozen", c.frozen, "Frozen matrices that are kept in few bits; null: none.");
  }
  bool on() const { return factors.on(); }
  LoraConfig of(LoraTarget target) const;  // rank 0 where it is none of the targets
  // How the target's matrices are kept; absent: in the run's type.
  std::optional<LowBitFormat> bits_of(LoraTarget target) const;
};

struct KeptMatrix;

struct LoraFactors {
  // `place`: which of its layer's adapters this is, so that each drops for itself.
  LoraFactors(const LoraConfig& config, int64_t out, int64_t in, DropPlace place);

  // s B (A d(x)): [.., in] to [.., out], in x's type. `context` is that of x's rows.
  at::Tensor delta(const at::Tensor& x, const Context& context) const;
  // The same in `type`, whatever the factors' own is.
  at::Tensor delta_in(at::ScalarType type, const at::Tensor& x, const Context& context) const;
  // The whole product y + delta(x), or that of DoRA: y [.., out] is W x + bias, or W x.
  at::Tensor beside(const KeptMatrix& w, const at::Tensor& x, const at::Tensor& y,
                    const at::Tensor& bias, const Context& context) const;

  static void visit(auto& m, auto&& f) {
    f("lora_a", m.a);
    f("lora_b", m.b);
    f("lora_m", m.m);
  }

  Param a, b;              // whole, until their user cuts one as its matrix
  std::optional<Param> m;  // [out], of DoRA
  double scale, drop;
  DropPlace place;

 private:
  at::Tensor dropped(const at::Tensor& x, const Context& context) const;
  at::Tensor row_factors(const at::Tensor& w) const;  // g [out], in f32 or f64
};

// ||W||: the norm of each row of W [out, in], in f32 or f64.
at::Tensor row_norms(const at::Tensor& w);

// While it lives, adapters on this thread count with s = 0: y = W x, the reference of a preference
// loss, in the bits of a model whose B are zero. No backward runs meanwhile.
class WithoutAdapters {
 public:
  WithoutAdapters();
  ~WithoutAdapters();
  WithoutAdapters(const WithoutAdapters&) = delete;
  WithoutAdapters& operator=(const WithoutAdapters&) = delete;

  static double scale(double own);  // 0 while one lives on this thread, else `own`

 private:
  bool before_;
};

// Initial values of A and of B.
Init lora_a_init();
Init lora_b_init();

// Whether a parameter of this name is a factor of an adapter.
bool is_adapter(std::string_view name);
// Patterns of the names of all factors.
inline constexpr const char* kAdapterNames[] = {"*lora_a", "*lora_b", "*lora_m"};

// Refuses magnitudes of matrices that tensor ranks cut; train/recipe/parallel.h names them.
void require_whole(const LoraFactors& factors, int64_t ranks);

// Refuses matrices in few bits that are cut over tensor ranks; train/recipe/parallel.h names them.
void require_whole(const std::optional<LowBitFormat>& bits, int64_t ranks, const char* what);

}  // namespace troupe
