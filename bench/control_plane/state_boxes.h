// What the ranks of a run hold of a model's state, without the model: its own parameters by their
// names and numbers of dimensions and experts, each dimension made small (small_size), cut over
// ranks as a run with parallel.shard: full cuts them.
//
//   stage     unit u of U is of pipeline stage u P / U
//   experts   an expert rank holds E / EP of a layer's, one after another
//   owners    the parameters of a unit that the same ranks hold, one behind the other, are cut into
//             equal ranges: dense ones over kShard, experts over kExpertShard
//
// A rank has each range three times: weights and AdamW's two moments, in f32. All elements of a
// tensor have one value that its name gives, so that what was loaded can be looked at.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/distributed/params/param.h"
#include "troupe/nn/config/config.h"

namespace troupe::control_plane {

// max(min(size, 4), size / 512): 7,168 becomes 14.
int64_t small_size(int64_t size);

struct CatalogParam {
  std::string name;
  Param param;  // of all experts; nothing is allocated
};

struct Catalog {
  std::vector<std::vector<CatalogParam>> units;
  int64_t experts = 0, layers = 0;
  int64_t tensors() const;  // of a checkpoint: each expert's its own, three times
};
// "deepseek-v3"; or the beginning of one preset's name. E2005 where there is none.
ModelConfig model_named(const std::string& name);
Catalog catalog_of(const ModelConfig& model);

// The layout of a run of so many ranks if nobody says: experts over a host of eight at most, stages
// of four layers or more, sixteen at most; a mesh that takes so many ranks.
MeshShape shape_for(const Catalog& catalog, int64_t ranks);

// A rank's part of the state.
class RankState {
 public:
  RankState(const Catalog& catalog, const ProcessMesh& mesh, int64_t rank);

  // Points at this object's memory. `to_load`: of ranks that hold the same, the first alone.
  CheckpointState named(bool to_load) const;
  void write_values();              // what a save is to save
  void forget_values();             // before a load
  std::string wrong_value() const;  // the name of a tensor that has others; empty: none

 private:
  struct Piece {
    std::string name;
    Param param;
    int64_t from, at, count;  // elements of the parameter's local box, and their place in memory
    Replica replica;
  };
  void add_bucket(const std::vector<CatalogParam>& params, bool experts, const ProcessMesh& mesh,
                  int64_t rank);
  template <class F>
  void for_each_copy(F&& f) const;  // f(name, piece, elements)

  std::vector<Piece> pieces_;
  int64_t size_ = 0;
  at::Tensor memory_;  // [3, size]
};

}  // namespace troupe::control_plane
