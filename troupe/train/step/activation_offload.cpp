#include "troupe/train/step/activation_offload.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/Storage.h>

#include <iterator>
#include <map>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/ops/support/copy_lane.h"
#include "troupe/ops/support/sole_storages.h"

namespace troupe {
namespace {

int64_t bytes_in(const c10::Storage& storage) {
  return static_cast<int64_t>(storage.nbytes());
}

at::Tensor as_bytes(const c10::Storage& storage) {
  at::Tensor out = at::empty({0}, at::TensorOptions(at::kByte).device(storage.device()));
  out.set_(storage, 0, {bytes_in(storage)}, {1});
  return out;
}

// The memory of a storage, which is left with none.
at::DataPtr taken_from(const c10::Storage& storage) {
  return storage.unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, storage.device()));
}

}  // namespace

struct ActivationOffload::State {
  struct OnHost {
    c10::Storage storage;  // without memory until it is fetched
    at::Tensor bytes;
  };

  struct SentUnit {
    std::vector<OnHost> kept;
    bool fetched = false;
    CopyMark ready = {};  // of the copies back
  };

  State(const c10::Device& on, size_t least) : device(on), least_bytes(least), lane(on) {}

  c10::Device device;
  size_t least_bytes;
  CopyLane lane;
  std::map<Cell, SentUnit> sent;
  std::vector<at::DataPtr> leaving;  // is still being copied
  CopyMark left;                     // when it has been
  int64_t sent_bytes = 0;
};

ActivationOffload::ActivationOffload(const c10::Device& device, size_t least_bytes)
    : state_(std::make_unique<State>(device, least_bytes)) {}

// After an error copies may be under way.
ActivationOffload::~ActivationOffload() {
  try {
    forget();
  } catch (...) {  // the device has failed: its error is on its way to the caller already
    state_->leaving.clear();
  }
}

void ActivationOffload::send(const Cell& cell, const TensorList& roots) {
  settle();
  State& s = *state_;
  TROUPE_CHECK(!s.sent.contains(cell), "unit", cell.first, "of microbatch", cell.second,
               "is in host memory already");
  const std::vector<c10::Storage> storages = sole_storages(roots, s.least_bytes);
  if (storages.empty()) return;
  const at::NoGradGuard no_grad;
  State::SentUnit& unit = s.sent[cell];
  s.left = s.lane.run([&] {
    const auto options = at::TensorOptions(at::kByte).pinned_memory(!s.device.is_cpu());
    for (const c10::Storage& storage : storages) {
      const at::Tensor host = at::empty({bytes_in(storage)}, options);
      host.copy_(as_bytes(storage), /*non_blocking=*/true);
      unit.kept.push_back({storage, host});
    }
  });
  for (const c10::Storage& storage : storages) {
    s.sent_bytes += bytes_in(storage);
    s.leaving.push_back(taken_from(storage));
  }
  if (!s.left) settle();
}

void ActivationOffload::settle() {
  State& s = *state_;
  s.lane.wait(s.left);
  s.left.reset();
  s.leaving.clear();
}

void ActivationOffload::fetch(const Cell& cell) {
  State& s = *state_;
  const auto found = s.sent.find(cell);
  if (found == s.sent.end() || found->second.fetched) return;
  settle();
  const at::NoGradGuard no_grad;
  State::SentUnit& unit = found->second;
  TensorList fresh;
  const auto options = at::TensorOptions(at::kByte).device(s.device);
  for (const State::OnHost& kept : unit.kept) {
    fresh.push_back(at::empty({bytes_in(kept.storage)}, options));
  }
  unit.ready = s.lane.run([&] {
    for (size_t i = 0; i < fresh.size(); ++i) {
      fresh[i].copy_(unit.kept[i].bytes, /*non_blocking=*/true);
    }
  });
  for (size_t i = 0; i < fresh.size(); ++i) {
    unit.kept[i].storage.unsafeGetStorageImpl()->set_data_ptr_noswap(
        taken_from(fresh[i].storage()));
  }
  unit.fetched = true;
}

void ActivationOffload::need(const Cell& cell) {
  fetch(cell);
  const auto found = state_->sent.find(cell);
  if (found == state_->sent.end()) return;
  state_->lane.wait(found->second.ready);
  state_->sent.erase(found);
}

void ActivationOffload::forget() {
  settle();
  for (const auto& [cell, unit] : state_->sent) state_->lane.wait(unit.ready);
  state_->sent.clear();
  state_->sent_bytes = 0;
}

int64_t ActivationOffload::waiting() const {
  return std::ssize(state_->sent);
}

int64_t ActivationOffload::sent_bytes() const {
  return state_->sent_bytes;
}

}  // namespace troupe
