#include "troupe/train/step/checkpoint_tensors.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/train/optim/moments8.h"
#include "troupe/train/recipe/fp8.h"

namespace troupe {
namespace {

// Not a router's or another module's state, which training changes.
bool is_frozen_weight(const Param& p) {
  return p.frozen && p.group != Group::kState;
}

}  // namespace

void CheckpointTensors::add_to(CheckpointState& state, Saved what) {
  for (size_t s = 0; s < store_.slots().size(); ++s) {
    const ParamStore::Slot& slot = store_.slots()[s];
    const Bucket& b = store_.buckets()[static_cast<size_t>(slot.bucket)];
    if (what.to_load && !store_.reads_loaded(b)) continue;
    const ProcessGroup& same = *b.mesh.replicate;
    const Replica replica = what.to_load ? Replica() : Replica{same.rank(), same.size()};
    const int64_t from = store_.owned(static_cast<int64_t>(s)).from;
    const auto part = [&](const at::Tensor& x) { return store_.part(static_cast<int64_t>(s), x); };
    const auto add = [&](const std::string& prefix, const StateTensor& live) {
      state.add_range(prefix + slot.named.name, *slot.named.param, from, live, replica);
    };
    add("model.",
        b.in_halves() ? StateTensor(part(b.own), part(b.low)) : StateTensor(part(b.master)));
    if (what.weights_alone) continue;
    const std::vector<std::string> names = optimizer_.state_names(b);
    for (size_t i = 0; i < names.size(); ++i) {
      add("optimizer." + names[i] + '.', state_tensor(static_cast<int64_t>(s), i, names[i]));
    }
    const Param& p = *slot.named.param;
    const std::vector<SlotState> others = optimizer_.slot_states(p, b.key);
    for (size_t i = 0; i < others.size(); ++i) {
      state.add_range("optimizer." + others[i].name + '.' + slot.named.name,
                      state_like(p, others[i].extent), 0, slot.state[i], replica);
    }
  }
  state.may_lack(kFp8HistoryNames);
  for (const NamedParam& other : store_.others()) {
    if (other.param->low_bit) {
      if (what.to_load && reads_low_bit_) add_low_bit(state, other);
      continue;
    }
    const ShardMesh mesh = store_.mesh_of(other);
    const ProcessGroup &cut = *mesh.shard, &same = *mesh.replicate;
    // Whole on each of them, to read and to write.
    const Replica replica{same.rank() * cut.size() + cut.rank(), same.size() * cut.size()};
    CheckpointState parts;
    parts.add("model." + other.name, *other.param, what.to_load ? Replica() : replica);
    const bool all = what.frozen_of == nullptr || !is_frozen_weight(*other.param);
    state.take(parts,
               [&](const std::string& name) { return all || what.frozen_of->contains(name); });
  }
}

std::set<std::string> CheckpointTensors::frozen() const {
  CheckpointState state;
  for (const NamedParam& other : store_.others()) {
    const Param& p = *other.param;
    if (is_frozen_weight(p) && !p.low_bit) state.add("model." + other.name, p);
  }
  std::set<std::string> out;
  for (const CheckpointState::Part& part : state.parts()) out.insert(part.tensor.name);
  return out;
}

void CheckpointTensors::add_low_bit(CheckpointState& state, const NamedParam& named) {
  Param* const param = named.param;
  const std::string name = "model." + named.name;
  const auto take = [this, param, name](int64_t at, const at::Tensor& numbers) {
    const std::lock_guard lock(packing_mutex_);
    try {
      param->pack(at, numbers);
    } catch (const Error& e) {
      fail(Code::kDamagedCheckpoint, name, "cannot be kept in few bits:", e.what());
    }
  };
  const at::ScalarType type = store_.options().dtype().toScalarType();
  state.add_range(name, *param, 0, StateTensor::taken(param->numel(), type, take));
}

StateTensor CheckpointTensors::state_tensor(int64_t slot, size_t i, const std::string& name) {
  const int64_t bucket = store_.slots()[static_cast<size_t>(slot)].bucket;
  const Bucket& b = store_.buckets()[static_cast<size_t>(bucket)];
  const at::Tensor value = store_.part(slot, b.state[i]);
  if (b.scales.empty()) return value;
  const auto take = [this, slot, i, n = value.numel()](int64_t at, const at::Tensor& numbers) {
    at::Tensor all;
    {
      const std::lock_guard lock(brought_mutex_);
      at::Tensor& kept = brought_[{slot, i}];
      if (!kept.defined()) kept = at::zeros({n}, at::kFloat);
      all = kept;
    }
    all.narrow(0, at, numbers.numel()).copy_(numbers);
  };
  const at::Tensor scales = store_.part_of_blocks(slot, b.scales[i]);
  return StateTensor::coded(value, scales, is_second_moment(name), take);
}

void CheckpointTensors::loaded(bool weights_alone) {
  if (weights_alone) {
    for (Bucket& b : store_.buckets()) {
      for (at::Tensor& x : b.state) x.zero_();
      for (at::Tensor& x : b.scales) x.zero_();
    }
    for (ParamStore::Slot& slot : store_.slots()) {
      for (at::Tensor& x : slot.state) x.zero_();
    }
  }
  for (auto& [of, numbers] : brought_) {
    const auto& [slot, i] = of;
    const int64_t bucket = store_.slots()[static_cast<size_t>(slot)].bucket;
    const Bucket& b = store_.buckets()[static_cast<size_t>(bucket)];
    const bool second = is_second_moment(optimizer_.state_names(b)[i]);
    const at::Tensor codes = store_.part(slot, b.state[i]);
    const at::Tensor scales = store_.part_of_blocks(slot, b.scales[i]);
    constexpr int64_t kAtATime = int64_t{1} << 24;
    for (int64_t from = 0; from < numbers.numel(); from += kAtATime) {
      const int64_t n = std::min(kAtATime, numbers.numel() - from);
      code_moments(numbers.narrow(0, from, n).to(codes.device()), codes.narrow(0, from, n),
                   scales.narrow(0, from / kMomentBlock, moment_blocks(n)), second,
                   /*dithered=*/false);
    }
    numbers.reset();
  }
  brought_.clear();
  store_.spread_loaded();
  store_.values_from_masters();
}

}  // namespace troupe
