#include "troupe/train/forecast/prove_layout.h"

#include <algorithm>
#include <vector>

#include "troupe/distributed/mesh/process_mesh.h"
#include "troupe/nn/model/model.h"
#include "troupe/schedule/prove.h"
#include "troupe/train/forecast/mesh_world.h"
#include "troupe/train/forecast/step_work.h"

namespace troupe {
namespace {

constexpr int64_t kMostEvents = 1'000'000;  // a fifth of a second
constexpr int64_t kEventsOfAForward = 40;   // at most, of a unit and microbatch there and back

std::vector<UnitParts> units_of(const ModelConfig& model, int chunks) {
  std::vector<UnitParts> out;
  for (int c = 0; c < chunks; ++c) {
    const bool block = c > 0 && c + 1 < chunks;
    const int64_t states = c > 0 ? states_after(model, c - 1, /*training=*/true) : 1;
    out.push_back({.attention = block, .states = static_cast<int>(states)});
  }
  for (const MoeUnit& moe : moe_units(model)) {
    UnitParts& unit = out.at(static_cast<size_t>(moe.unit));
    // With a sum over all ranks whether or not a loss asks for it: with one call less in each of
    // their forwards ranks wait less.
    unit.experts = unit.sums_over_all = true;
  }
  return out;
}

// Of each data index as make_feed() has them: a microbatch beyond a rank's own has no rows.
std::vector<std::vector<int64_t>> step_rows(int64_t all, int64_t data, int64_t rows, int64_t most) {
  std::vector<std::vector<int64_t>> out;
  for (int64_t d = 0; d < data; ++d) {
    const RankShare share = share_of(all, d, data);
    std::vector<int64_t>& own = out.emplace_back();
    for (int64_t m = std::max<int64_t>(0, share.steps - most); m < share.steps; ++m) {
      own.push_back(m < share.count ? rows : 0);
    }
  }
  return out;
}

}  // namespace

LayoutProof prove_layout(const Recipe& recipe, const ParallelConfig& parallel, int64_t batch,
                         int64_t micro_batch, int64_t ranks) {
  const ProcessMesh mesh(ranks, shape_of(parallel));
  StepWork work = step_work(recipe, parallel);
  work.replicas = static_cast<int>(ranks / work.ranks);
  const int64_t all = batch / micro_batch;
  LayoutProof out{.ranks = ranks};
  out.microbatches = share_of(all, 0, mesh.data()).steps;
  const int64_t of_one = work.replicas * work.chunks * kEventsOfAForward;
  out.proven = std::min(out.microbatches, kMostEvents / of_one);
  if (out.proven == 0) return out;
  work.microbatches = static_cast<int>(out.proven);
  const MeshWorld parts{
      .whole_state = parallel.shard == ShardKind::kNone,
      .units = units_of(recipe.model, work.chunks),
      .rows = step_rows(all, mesh.data(), micro_batch * recipe.data.sequence, out.proven)};
  const Proof proof =
      require_proven({step_schedule(parallel, work)}, work, world_of(mesh, work, parts));
  out.events = proof.events;
  out.capacity = proof.capacity;
  return out;
}

std::string to_text(const LayoutProof& proof) {
  std::string out = std::to_string(proof.ranks) + " ranks, ";
  if (proof.proven == 0) return out + "not proven: a step has too many events";
  out += std::to_string(proof.proven);
  if (proof.proven < proof.microbatches) out += " of " + std::to_string(proof.microbatches);
  out += " microbatches: " + std::to_string(proof.events) + " events end in every order";
  if (proof.capacity > 0) {
    out += ", with room for " + std::to_string(proof.capacity) + " message in a channel";
  }
  return out;
}

}  // namespace troupe
