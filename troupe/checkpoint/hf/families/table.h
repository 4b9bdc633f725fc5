// What the families' tables are made with.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/checkpoint/hf/families/families.h"

namespace troupe::hf {

class Table {
 public:
  // The same tensor there.
  void same(const std::string& ours, const std::vector<int64_t>& shape, const std::string& theirs);
  // Ours is theirs, one after the other: rows of each.
  void joined(const std::string& ours, const std::vector<int64_t>& shape,
              const std::vector<std::string>& theirs);
  void add(const std::string& ours, const std::vector<int64_t>& shape, std::vector<HfPiece> pieces);
  HfTensor& last() { return tensors_.back(); }
  std::vector<HfTensor> take() { return std::move(tensors_); }

 private:
  std::vector<HfTensor> tensors_;
};

// Where a piece's first element is in their tensor, and how far apart its rows and columns are.
struct Strided {
  int64_t offset, row_stride, column_stride;
};
HfPiece piece(const std::string& theirs, const std::vector<int64_t>& shape, int64_t row,
              int64_t rows, const Strided& at);

int64_t product(const std::vector<int64_t>& sizes, size_t from = 0);

// How a family's files call the parts of a MoE layer, after the layer's prefix.
struct MoeStyle {
  std::string router = "mlp.gate.weight";
  std::string experts = "mlp.experts";  // in files: .{e}.{gate, up, down}.weight
  std::string gate = "gate_proj", up = "up_proj", down = "down_proj";
  std::string fused_router = "mlp.gate.weight";
};
// Mixtral's, which others took over.
inline MoeStyle mixtral_style() {
  return {"block_sparse_moe.gate.weight", "block_sparse_moe.experts", "w1", "w3", "w2"};
}

// What a layer's names begin with, the dot included: "layers.3.", "model.layers.3.".
struct Prefix {
  std::string ours, theirs;
};

void add_ends(Table& t, const ModelConfig& c);
// What the norms of queries and keys are called.
struct QkNames {
  std::string q = "q_norm", k = "k_norm";
};
void add_attention(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                   const QkNames& norms = {});
void add_mla(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at);
void add_norms(Table& t, const ModelConfig& c, const Prefix& at);
void add_ffn(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at);
void add_experts(Table& t, const ModelConfig& c, const LayerConfig& l, const MoeStyle& style,
                 const Prefix& at, bool fused);

// One expert for every token, under `name` of the layer: "mlp.shared_experts.".
void add_shared(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                const std::string& name);
// The router's bias of its choice, under its name in the layer.
void add_choice_bias(Table& t, const LayerConfig& l, const Prefix& at, const std::string& name);
// Experts whose router may have a bias of its choice (e_score_correction_bias), and shared ones.
void add_biased_moe(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                    bool fused);

// Norms, latent attention, and such experts or a dense feed-forward.
void add_latent_block(Table& t, const ModelConfig& c, const LayerConfig& l, const Prefix& at,
                      bool fused);

// Whether a tensor is of a multi-token prediction module that the config leaves out.
bool module_left_out(const ModelConfig& c, std::string_view name);

// The ends, and each block by `add_block` between "layers.3." of ours and "model.layers.3." of
// theirs.
using AddBlock = std::function<void(Table& t, const LayerConfig& l, const Prefix& at)>;
std::vector<HfTensor> layered_names(const ModelConfig& c, const AddBlock& add_block);

// Norms, attention, and experts or a dense feed-forward, by the names that Llama and most after it
// have.
std::vector<HfTensor> common_names(const ModelConfig& c, bool fused);
// The same with add_biased_moe's experts.
std::vector<HfTensor> biased_moe_names(const ModelConfig& c, bool fused);

}  // namespace troupe::hf
