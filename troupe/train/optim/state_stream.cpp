#include "troupe/train/optim/state_stream.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <algorithm>

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
                                       int64_t piece) {
  TROUPE_CHECK(piece > 0, "windows of", piece, "elements");
  std::vector<StateWindow> out;
  for (size_t i = 0; i < store.buckets().size(); ++i) {
    add_windows(store, optimizer, i, rounded_to(piece, kMomentBlock), out);
  }
  return out;
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

void StateStream::update(ParamStore& store, Optimizer& optimizer,
                         const std::function<UpdateStep(const Bucket&)>& step_of) {
  const at::NoGradGuard no_grad;
  const std::vector<StateWindow> windows = state_windows(store, optimizer, piece_);
  const auto bucket_of = [&](size_t i) -> const Bucket& {
    return store.buckets()[windows[i].bucket];
  };
  int64_t most = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    most = std::max(most, window_bytes(bucket_of(i), windows[i]));
  }
  std::array<Buffer, kBuffers> buffers;
  for (Buffer& buffer : buffers) {
    buffer.bytes = at::empty({most}, at::TensorOptions(at::kByte).device(device_));
  }
  const auto buffer_of = [&](size_t i) -> Buffer& { return buffers[i % kBuffers]; };
  for (size_t i = 0; i < windows.size(); ++i) {
    if (i == 0) bring(bucket_of(0), windows[0], buffer_of(0));
    if (i + 1 < windows.size()) bring(bucket_of(i + 1), windows[i + 1], buffer_of(i + 1));
    in_.wait(buffer_of(i).arrived);
    optimizer.update(store, buffer_of(i).bucket, step_of(bucket_of(i)));
    put_back(bucket_of(i), windows[i], buffer_of(i));
  }
  in_.finish();
  out_.finish();
  for (Bucket& b : store.buckets()) b.stale = true;
}

}  // namespace troupe
