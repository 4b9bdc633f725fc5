#include "troupe/train/optim/state_stream.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <numeric>

#include "troupe/core/check.h"
#include "troupe/core/number/moment8.h"

namespace troupe {
namespace {

constexpr int64_t kAligned = 512;  // bytes at which a buffer's parts begin

int64_t rounded_to(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}

// Where in a bucket's own range each of its parameters ends, the space behind it included.
std::vector<int64_t> ends_of_members(const ParamStore& store, const Bucket& b) {
  std::vector<int64_t> out;
  for (size_t i = 1; i < b.members.size(); ++i) {
    out.push_back(store.slots()[static_cast<size_t>(b.members[i])].offset);
  }
  out.push_back(b.own_size);
  return out;
}

void add_windows(const ParamStore& store, const Optimizer& optimizer, size_t bucket, int64_t piece,
                 std::vector<StateWindow>& out) {
  const Bucket& b = store.buckets()[bucket];
  if (b.own_size == 0) return;
  if (optimizer.by_element(b)) {
    for (int64_t from = 0; from < b.own_size; from += piece) {
      out.push_back({bucket, from, std::min(piece, b.own_size - from)});
    }
    return;
  }
  if (b.mesh.shard->size() > 1 || b.mesh.parts->size() > 1) {
    out.push_back({bucket, 0, b.own_size});
    return;
  }
  int64_t from = 0, before = 0;
  for (const int64_t end : ends_of_members(store, b)) {
    if (end - from > piece && before > from) {
      out.push_back({bucket, from, before - from});
      from = before;
    }
    before = end;
  }
  if (before > from) out.push_back({bucket, from, before - from});
}

std::vector<int64_t> all_buckets(const ParamStore& store) {
  std::vector<int64_t> out(store.buckets().size());
  std::iota(out.begin(), out.end(), int64_t{0});
  return out;
}

// f(host, here) for each buffer of a bucket that is in host memory: the window's part of it, and the
// window's own.
template <class F>
void for_each_part(const Bucket& b, const StateWindow& w, Bucket& window, F&& f) {
  const int64_t block = w.from / kMomentBlock, blocks = moment_blocks(w.size);
  if (b.in_halves()) f(b.low.narrow(0, w.from, w.size), window.low);
  if (b.has_master()) f(b.master.narrow(0, w.from, w.size), window.master);
  for (size_t i = 0; i < b.state.size(); ++i) {
    f(b.state[i].narrow(0, w.from, w.size), window.state[i]);
  }
  for (size_t i = 0; i < b.scales.size(); ++i) {
    f(b.scales[i].narrow(0, block, blocks), window.scales[i]);
  }
}

// The window, whose buffers in host memory are not there yet.
Bucket window_on(const Bucket& b, const StateWindow& w) {
  Bucket out = b;
  out.own_from = b.own_from + w.from;
  out.own_size = w.size;
  out.own = b.own.narrow(0, w.from, w.size);
  if (!b.has_master() && !b.in_halves()) out.master = out.own;
  if (b.grad.defined()) out.grad = b.grad.narrow(0, w.from, w.size);
  return out;
}

}  // namespace

std::vector<StateWindow> state_windows(const ParamStore& store, const Optimizer& optimizer,
                                       int64_t piece, const std::vector<int64_t>& buckets) {
  TROUPE_CHECK(piece > 0, "windows of", piece, "elements");
  std::vector<StateWindow> out;
  for (const int64_t i : buckets) {
    add_windows(store, optimizer, static_cast<size_t>(i), rounded_to(piece, kMomentBlock), out);
  }
  return out;
}

std::vector<StateWindow> state_windows(const ParamStore& store, const Optimizer& optimizer,
                                       int64_t piece) {
  return state_windows(store, optimizer, piece, all_buckets(store));
}

int64_t window_bytes(const Bucket& b, const StateWindow& w) {
  int64_t out = 0;
  Bucket window = b;
  for_each_part(b, w, window, [&](const at::Tensor& part, const at::Tensor&) {
    out += rounded_to(static_cast<int64_t>(part.nbytes()), kAligned);
  });
  return out;
}

StateStream::StateStream(const c10::Device& device, int64_t piece)
    : device_(device), piece_(piece), in_(device), out_(device) {}

void StateStream::bring(const Bucket& b, const StateWindow& w, Buffer& buffer) {
  buffer.bucket = window_on(b, w);
  buffer.arrived = in_.run(
      [&] {
        int64_t at = 0;
        for_each_part(b, w, buffer.bucket, [&](const at::Tensor& host, at::Tensor& here) {
          const auto bytes = static_cast<int64_t>(host.nbytes());
          here = buffer.bytes.narrow(0, at, bytes).view(host.scalar_type());
          here.copy_(host, /*non_blocking=*/true);
          at += rounded_to(bytes, kAligned);
        });
      },
      buffer.left);  // the window that was in it before
}

void StateStream::put_back(const Bucket& b, const StateWindow& w, Buffer& buffer) {
  buffer.left = out_.run([&] {
    for_each_part(b, w, buffer.bucket, [](const at::Tensor& host, const at::Tensor& here) {
      host.copy_(here, /*non_blocking=*/true);
    });
  });
}

// One allocation each, as large as any window of the store, so that windows of all units fit.
void StateStream::make_buffers(const ParamStore& store, const Optimizer& optimizer) {
  int64_t most = 0;
  for (const StateWindow& w : state_windows(store, optimizer, piece_)) {
    most = std::max(most, window_bytes(store.buckets()[w.bucket], w));
  }
  buffers_.reserve(kBuffers);
  for (size_t i = 0; i < kBuffers; ++i) {
    buffers_.emplace_back();
    buffers_.back().bytes = at::empty({most}, at::TensorOptions(at::kByte).device(device_));
  }
  next_ = 0;
}

void StateStream::issue(ParamStore& store, Optimizer& optimizer,
                        const std::vector<int64_t>& buckets, const StepOf& step_of) {
  const at::NoGradGuard no_grad;
  if (buffers_.empty()) make_buffers(store, optimizer);
  const std::vector<StateWindow> windows = state_windows(store, optimizer, piece_, buckets);
  const auto bucket_of = [&](size_t i) -> const Bucket& {
    return store.buckets()[windows[i].bucket];
  };
  const auto buffer_of = [&](size_t i) -> Buffer& { return buffers_[(next_ + i) % kBuffers]; };
  for (size_t i = 0; i < windows.size(); ++i) {
    if (i == 0) bring(bucket_of(0), windows[0], buffer_of(0));
    if (i + 1 < windows.size()) bring(bucket_of(i + 1), windows[i + 1], buffer_of(i + 1));
    in_.wait(buffer_of(i).arrived);
    optimizer.update(store, buffer_of(i).bucket, step_of(bucket_of(i)));
    buffer_of(i).bucket.grad.reset();  // the caller holds it for as long as the update reads it
    put_back(bucket_of(i), windows[i], buffer_of(i));
  }
  next_ = (next_ + windows.size()) % kBuffers;
  for (const int64_t i : buckets) store.buckets()[static_cast<size_t>(i)].stale = true;
}

void StateStream::finish() {
  in_.finish();
  out_.finish();
  buffers_.clear();
}

void StateStream::update(ParamStore& store, Optimizer& optimizer, const StepOf& step_of) {
  issue(store, optimizer, all_buckets(store), step_of);
  finish();
}

}  // namespace troupe
