#include "troupe/distributed/group/echo_backend.h"

#include <ATen/TensorOperators.h>

#include <algorithm>
#include <numeric>

namespace troupe {
namespace {

using c10d::Work;
using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<Work>;

class Done : public Work {
 public:
  bool isCompleted() override { return true; }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override { return true; }
};

class EchoBackend : public c10d::Backend {
 public:
  EchoBackend(int rank, int size) : Backend(rank, size) {}
  const std::string getBackendName() const override { return "echo"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    for (at::Tensor& x : tensors) x.mul_(size_);
    return done();
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions&) override {
    return allreduce(tensors, {});
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::ReduceScatterOptions&) override {
    for (size_t i = 0; i < outs.size(); ++i) {
      const int64_t n = outs[i].numel();
      outs[i].copy_(ins[i].view(-1).narrow(0, rank_ * n, n).view_as(outs[i])).mul_(size_);
    }
    return done();
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::AllgatherOptions&) override {
    for (size_t i = 0; i < outs.size(); ++i) {
      const int64_t n = ins[i].numel();
      const at::Tensor own = ins[i].reshape({-1}), all = outs[i].view(-1);
      for (int r = 0; r < size_; ++r) {
        const at::Tensor part = all.narrow(0, r * n, n);
        if (n > 0 && part.data_ptr() != own.data_ptr()) part.copy_(own);
      }
    }
    return done();
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& receive,
                        std::vector<int64_t>& send, const c10d::AllToAllOptions&) override {
    const auto own = send.begin() + rank_;
    const at::Tensor mine = in.narrow(0, std::accumulate(send.begin(), own, int64_t{0}), *own);
    int64_t at = 0;
    for (const int64_t rows : receive) {
      fill(out.narrow(0, at, rows), rows == *own ? mine : in);
      at += rows;
    }
    return done();
  }
  WorkPtr send(Tensors&, int, int) override { return done(); }
  WorkPtr recv(Tensors& tensors, int, int) override {
    for (at::Tensor& x : tensors) x.fill_(1);
    return done();
  }
  WorkPtr broadcast(Tensors&, const c10d::BroadcastOptions&) override { return done(); }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return done(); }

 private:
  // With rows of the other, again and again.
  static void fill(const at::Tensor& out, const at::Tensor& rows) {
    if (rows.size(0) == 0) {
      out.zero_();
      return;
    }
    for (int64_t at = 0; at < out.size(0); at += rows.size(0)) {
      const int64_t n = std::min(rows.size(0), out.size(0) - at);
      out.narrow(0, at, n).copy_(rows.narrow(0, 0, n));
    }
  }
  static WorkPtr done() { return c10::make_intrusive<Done>(); }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> echo_backend(int rank, int size) {
  return c10::make_intrusive<EchoBackend>(rank, size);
}

}  // namespace troupe
