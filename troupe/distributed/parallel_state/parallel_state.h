// Who this process is among those that train one model: the only object that says so. Made once, of
// the launcher's ranks and their mesh; one rank alone sends nothing.
//
//   rank, size           among all processes
//   data_ranks/_index    replicas of the model, each with its own sequences
//   stage_ranks/_rank    the ranks that hold one replica's layers, one after another (pipeline)
//   context_ranks/_rank  the ranks that share each sequence
//
// Who reads a batch, counts a loss or writes a log asks one of these, never rank() or size(): a
// replica may be several ranks.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/distributed/parallel_state/all_to_all_bytes.h"
#include "troupe/distributed/world/world.h"

namespace troupe {

class ParallelState {
 public:
  ParallelState();  // one rank
  // All ranks call it, with one shape. E2010 and E2005 as ProcessMesh.
  ParallelState(std::shared_ptr<World> world, const MeshShape& shape);

  int64_t rank() const { return world_->rank(); }
  int64_t size() const { return world_->size(); }
  bool alone() const { return size() == 1; }
  bool writes_logs() const { return rank() == 0; }

  int64_t data_ranks() const { return mesh_.data(); }
  int64_t data_index() const { return mesh_.data_index(rank()) / mesh_.shape().context; }
  int stage_ranks() const { return static_cast<int>(mesh_.shape().pipeline); }
  int stage_rank() const { return static_cast<int>(mesh_.pipeline_index(rank())); }
  int64_t context_ranks() const { return mesh_.shape().context; }
  int64_t context_rank() const { return mesh_.data_index(rank()) % mesh_.shape().context; }
  // The ranks of a microbatch know the same of it, and so do those of a replica: the first of them
  // reports what is counted once.
  bool first_of_microbatch() const;
  bool first_of_replica() const { return first_of_microbatch() && stage_rank() == 0; }
  bool first_of_stage() const { return first_of_microbatch() && data_index() == 0; }

  World& world() const { return *world_; }
  const std::shared_ptr<World>& shared_world() const { return world_; }
  const ProcessMesh& mesh() const { return mesh_; }
  // This rank's group of a kind. All its ranks make the first call for it in the same order; a
  // group is created once for each channel (World::group).
  std::shared_ptr<ProcessGroup> group(GroupKind kind, const std::string& channel = {},
                                      const GroupOptions& how = {}) const;

  // Sums over ranks of a tensor on the device: over all, and over those with the same layers.
  // Empty where there is one rank.
  using Sum = std::function<at::Tensor(const at::Tensor&)>;
  Sum sum_over_all() const;
  Sum sum_over_stage() const;
  Sum max_over_stage() const;  // the maximum instead; a NaN is the largest
  // Sums of small values on the host, over all ranks.
  std::vector<double> all_reduce(std::vector<double> values) const;
  // And over the ranks of this one's pipeline, through the device.
  std::vector<double> all_reduce_stages(std::vector<double> values) const;

  // Each rank's text, in rank order. All ranks call it, each topic from one thread at a time, which
  // may be a background thread: it meets no collective of a training step.
  using Patience = World::Patience;
  std::vector<std::string> all_gather_texts(const std::string& topic, const std::string& mine,
                                            Patience patience = Patience::kTimeout) const;
  // Throws E2010 unless all ranks have the same text; the message says which ranks have what.
  void require_equal(const std::string& what, const std::string& text) const;
  // The same of many values in one round, by their hashes; the first that differs is named.
  using NamedValues = std::vector<std::pair<std::string, std::string>>;
  void require_equal(const std::string& what, const NamedValues& values) const;
  void all_to_all(const AllToAllBytes& bytes) const;

 private:
  std::shared_ptr<World> world_;
  ProcessMesh mesh_;
  std::shared_ptr<ProcessGroup> all_, host_, stage_, pipeline_;  // null: one rank
};

// Throws E2010 unless all ranks have the same text. require_equal_lines() shows only the first line
// that differs.
void require_equal(World& world, const std::string& what, const std::string& text);
void require_equal_lines(World& world, const std::string& what, const std::string& lines);
using NamedValues = ParallelState::NamedValues;
void require_equal_values(World& world, const std::string& what, const NamedValues& values);

}  // namespace troupe
