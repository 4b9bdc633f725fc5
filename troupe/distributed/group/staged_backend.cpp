#include "troupe/distributed/group/staged_backend.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>

#include <utility>
#include <vector>

#include "troupe/distributed/group/host_copy.h"

namespace troupe {
namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

// Copies on the host, which are there when it returns. A tensor of the CPU is copied too.
Tensors sent_copies(const Tensors& all) {
  std::vector<HostCopy> copies;
  for (const at::Tensor& x : all) copies.emplace_back(x);
  Tensors out;
  for (size_t i = 0; i < all.size(); ++i) {
    const at::Tensor copy = copies[i].read();
    out.push_back(all[i].is_cpu() ? copy.clone(at::MemoryFormat::Contiguous) : copy);
  }
  return out;
}

// Room on the host for what comes.
Tensors room_for(const Tensors& all) {
  Tensors out;
  for (const at::Tensor& x : all) {
    out.push_back(at::empty(x.sizes(), x.options().device(at::kCPU).pinned_memory(!x.is_cpu())));
  }
  return out;
}

class StagedWork : public c10d::Work {
 public:
  // `host` fills `from`; `sent` stays until it is done.
  StagedWork(WorkPtr host, Tensors to, Tensors from, Tensors sent)
      : host_(std::move(host)),
        to_(std::move(to)),
        from_(std::move(from)),
        sent_(std::move(sent)) {}
  bool isCompleted() override { return host_->isCompleted(); }
  bool wait(std::chrono::milliseconds timeout) override {
    const bool done = host_->wait(timeout);
    const at::NoGradGuard no_grad;
    const Tensors to = std::exchange(to_, {});
    for (size_t i = 0; i < to.size(); ++i) {
      // variable_data() has a version of its own: as of NCCL, what arrives is no in-place change of
      // a tensor that autograd keeps.
      to[i].variable_data().copy_(from_[i], /*non_blocking=*/true);
    }
    return done;
  }

 private:
  WorkPtr host_;
  Tensors to_, from_, sent_;
};

class StagedBackend : public c10d::Backend {
 public:
  explicit StagedBackend(c10::intrusive_ptr<c10d::Backend> host)
      : Backend(host->getRank(), host->getSize()), host_(std::move(host)) {}
  const std::string getBackendName() const override {
    return host_->getBackendName() + " through host memory";
  }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& options) override {
    Tensors host = sent_copies(tensors);
    return work(host_->allreduce(host, options), tensors, host);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors,
                              const c10d::AllreduceCoalescedOptions& options) override {
    Tensors host = sent_copies(tensors);
    return work(host_->allreduce_coalesced(host, options), tensors, host);
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::ReduceScatterOptions& options) override {
    Tensors sent = sent_copies(ins), came = room_for(outs);
    return work(host_->reduce_scatter_tensor_coalesced(came, sent, options), outs, came, sent);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::AllgatherOptions& options) override {
    Tensors sent = sent_copies(ins), came = room_for(outs);
    return work(host_->allgather_into_tensor_coalesced(came, sent, options), outs, came, sent);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& receive,
                        std::vector<int64_t>& send, const c10d::AllToAllOptions& options) override {
    Tensors sent = sent_copies({in}), came = room_for({out});
    return work(host_->alltoall_base(came[0], sent[0], receive, send, options), {out}, came, sent);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    Tensors host = sent_copies(tensors);
    return work(host_->broadcast(host, options), tensors, host);
  }
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    Tensors host = sent_copies(tensors);
    return work(host_->send(host, to, tag), {}, {}, host);
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    Tensors host = room_for(tensors);
    return work(host_->recv(host, from, tag), tensors, host);
  }
  WorkPtr barrier(const c10d::BarrierOptions& options) override { return host_->barrier(options); }

 private:
  static WorkPtr work(WorkPtr host, const Tensors& to, const Tensors& from,
                      const Tensors& sent = {}) {
    return c10::make_intrusive<StagedWork>(std::move(host), to, from, sent);
  }

  c10::intrusive_ptr<c10d::Backend> host_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> staged_backend(c10::intrusive_ptr<c10d::Backend> host) {
  return c10::make_intrusive<StagedBackend>(std::move(host));
}

}  // namespace troupe
