#include "troupe/distributed/group/process_group.h"

#include <ATen/core/grad_mode.h>

#include <numeric>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/group/group_backend.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/group/symmetric_heap.h"

namespace troupe {
namespace {

using c10d::Work;

[[noreturn]] void lost(Collective what, const GroupMembers& group, const char* why) {
  fail(Code::kRankLost, std::string(to_text(what)) + " of " + group.text(), why);
}

// For what only moves: the networks have no integers of 16 bits, and a bf16 has as many.
at::Tensor carried(const at::Tensor& x) {
  return x.scalar_type() == at::kShort ? x.view(at::kBFloat16) : x;
}

std::vector<at::Tensor> carried(const std::vector<at::Tensor>& all) {
  std::vector<at::Tensor> out;
  for (const at::Tensor& x : all) out.push_back(carried(x));
  return out;
}

void note(const std::shared_ptr<Pulse>& pulse, Note event, const Operation& operation) {
  if (pulse) pulse->note(event, operation);
}

void check_sizes(const at::Tensor& whole, const at::Tensor& part, int64_t ranks) {
  TROUPE_CHECK(whole.numel() == part.numel() * ranks, "the whole tensor has", whole.numel(),
               "elements, each of", ranks, "parts", part.numel());
  TROUPE_CHECK(
      whole.scalar_type() == part.scalar_type() && whole.is_contiguous() && part.is_contiguous(),
      "whole and part must be contiguous and of one type");
}

}  // namespace

struct Pending::Work {
  c10::intrusive_ptr<c10d::Work> work;
  std::vector<at::Tensor> tensors;  // alive until it is done
  Operation operation;
  std::shared_ptr<const GroupMembers> group;
  std::shared_ptr<Pulse> pulse;
};

void Pending::wait() {
  if (!work_) return;
  const std::shared_ptr<Work> work = std::exchange(work_, nullptr);
  const Waiting waiting(work->pulse.get());
  note(work->pulse, Note::kWait, work->operation);
  try {
    work->work->wait();
  } catch (const std::exception& e) {
    lost(work->operation.what, *work->group, e.what());
  }
  note(work->pulse, Note::kWaited, work->operation);
}

ProcessGroup::ProcessGroup(int64_t rank)
    : members_(std::make_shared<GroupMembers>(GroupMembers{.ranks = {rank}, .backend = {}})) {}

ProcessGroup::ProcessGroup(std::unique_ptr<Backend> backend, std::vector<int64_t> ranks,
                           int64_t rank, std::shared_ptr<Pulse> pulse)
    : backend_(std::move(backend)),
      members_(std::make_shared<GroupMembers>(
          GroupMembers{.ranks = std::move(ranks), .backend = backend_->c10d->getBackendName()})),
      rank_(rank),
      pulse_(std::move(pulse)) {}

ProcessGroup::~ProcessGroup() = default;

std::string GroupMembers::text() const {
  const std::string out = (ranks.size() == 1 ? "rank " : "ranks ") + rank_list(ranks);
  return backend.empty() ? out : out + " over " + backend;
}

Operation ProcessGroup::count(Collective what, int64_t bytes) {
  return {.what = what,
          .first = static_cast<int32_t>(ranks().front()),
          .ranks = static_cast<int32_t>(size()),
          .number = ++issued_,
          .bytes = bytes};
}

SymmetricHeap& ProcessGroup::heap(const c10::Device& device) {
  if (!heap_) heap_ = std::make_shared<SymmetricHeap>(*this, device);
  return *heap_;
}

template <class F>
Pending ProcessGroup::issue(Collective what, std::vector<at::Tensor> tensors, F&& start) {
  Pending pending;
  if (!backend_) return pending;
  const at::NoGradGuard no_grad;
  int64_t bytes = 0;
  for (const at::Tensor& x : tensors) bytes += static_cast<int64_t>(x.nbytes());
  const Operation operation = count(what, bytes);
  note(pulse_, Note::kIssue, operation);
  try {
    pending.work_ = std::make_shared<Pending::Work>(
        Pending::Work{start(*backend_->c10d), std::move(tensors), operation, members_, pulse_});
  } catch (const std::exception& e) {
    lost(what, *members_, e.what());
  }
  return pending;
}

void ProcessGroup::carry_out(Collective what, int64_t bytes,
                             const std::function<void(Backend&)>& f) {
  const at::NoGradGuard no_grad;
  const Operation operation = count(what, bytes);
  note(pulse_, Note::kIssue, operation);
  const Waiting waiting(pulse_.get());
  note(pulse_, Note::kWait, operation);
  try {
    f(*backend_);
  } catch (const std::exception& e) {
    lost(what, *members_, e.what());
  }
  note(pulse_, Note::kWaited, operation);
}

Pending ProcessGroup::all_reduce(const std::vector<at::Tensor>& all) {
  for (const at::Tensor& x : all) {
    TROUPE_CHECK(x.is_contiguous(), "a tensor to be summed must be contiguous:", x.sizes());
  }
  return issue(Collective::kAllReduce, all, [&](c10d::Backend& c10d) {
    std::vector<at::Tensor> tensors = all;
    return tensors.size() == 1 ? c10d.allreduce(tensors) : c10d.allreduce_coalesced(tensors);
  });
}

Pending ProcessGroup::reduce_scatter(const std::vector<at::Tensor>& outs,
                                     const std::vector<at::Tensor>& ins) {
  std::vector<at::Tensor> tensors = outs;
  for (size_t i = 0; i < ins.size(); ++i) {
    check_sizes(ins[i], outs[i], size());
    if (!backend_) tensors[i].copy_(ins[i].view_as(outs[i]));
    tensors.push_back(ins[i]);
  }
  return issue(Collective::kReduceScatter, std::move(tensors), [&](c10d::Backend& c10d) {
    std::vector<at::Tensor> to = outs, from = ins;
    return c10d.reduce_scatter_tensor_coalesced(to, from);
  });
}

Pending ProcessGroup::all_gather(const std::vector<at::Tensor>& outs,
                                 const std::vector<at::Tensor>& ins) {
  std::vector<at::Tensor> tensors = outs;
  for (size_t i = 0; i < ins.size(); ++i) {
    check_sizes(outs[i], ins[i], size());
    const bool there = ins[i].numel() == 0 || ins[i].data_ptr() == outs[i].data_ptr();
    if (!backend_ && !there) tensors[i].copy_(ins[i].view_as(outs[i]));
    tensors.push_back(ins[i]);
  }
  return issue(Collective::kAllGather, std::move(tensors), [&](c10d::Backend& c10d) {
    std::vector<at::Tensor> to = carried(outs), from = carried(ins);
    return c10d.allgather_into_tensor_coalesced(to, from);
  });
}

void ProcessGroup::check_rows(const at::Tensor& out, const at::Tensor& in,
                              const std::vector<int64_t>& from_rows,
                              const std::vector<int64_t>& to_rows) const {
  const auto total = [](const std::vector<int64_t>& rows) {
    return std::accumulate(rows.begin(), rows.end(), int64_t{0});
  };
  TROUPE_CHECK(
      static_cast<int64_t>(from_rows.size()) == size() && from_rows.size() == to_rows.size(),
      "a group of", size(), "ranks was given", from_rows.size(), "and", to_rows.size());
  TROUPE_CHECK(out.size(0) == total(from_rows) && in.size(0) == total(to_rows), "-", out.size(0),
               "rows to receive and", in.size(0), "to send, in parts of", total(from_rows), "and",
               total(to_rows));
  TROUPE_CHECK(in.scalar_type() == out.scalar_type() && in.is_contiguous() && out.is_contiguous(),
               "both must be contiguous and of one type");
}

Pending ProcessGroup::all_to_all(const at::Tensor& out, const at::Tensor& in,
                                 const std::vector<int64_t>& from_rows,
                                 const std::vector<int64_t>& to_rows) {
  check_rows(out, in, from_rows, to_rows);
  if (!backend_) out.copy_(in);
  const int64_t others = in.size(0) - to_rows[static_cast<size_t>(rank_)];
  if (others > 0) {
    bytes_to_others_ += others * (in.numel() / in.size(0)) * static_cast<int64_t>(in.itemsize());
  }
  return issue(Collective::kAllToAll, {out, in}, [&](c10d::Backend& c10d) {
    at::Tensor to = carried(out), from = carried(in);
    std::vector<int64_t> receive = from_rows, send = to_rows;
    return c10d.alltoall_base(to, from, receive, send);
  });
}

Pending ProcessGroup::broadcast(const at::Tensor& x, int64_t from) {
  return issue(Collective::kBroadcast, {x}, [&](c10d::Backend& c10d) {
    std::vector<at::Tensor> tensors{carried(x)};
    c10d::BroadcastOptions options;
    options.rootRank = from;
    return c10d.broadcast(tensors, options);
  });
}

void ProcessGroup::check_message(const at::Tensor& x) const {
  TROUPE_CHECK(size() == 2, "a message between the two ranks of a group of", size());
  TROUPE_CHECK(x.numel() > 0 && x.is_contiguous(),
               "a message is contiguous and not empty; it has sizes", x.sizes());
}

Pending ProcessGroup::send(const at::Tensor& x) {
  check_message(x);
  return issue(Collective::kSend, {x}, [&](c10d::Backend& c10d) {
    std::vector<at::Tensor> tensors{carried(x)};
    return c10d.send(tensors, static_cast<int>(1 - rank_), /*tag=*/0);
  });
}

Pending ProcessGroup::recv(const at::Tensor& x) {
  check_message(x);
  return issue(Collective::kRecv, {x}, [&](c10d::Backend& c10d) {
    std::vector<at::Tensor> tensors{carried(x)};
    return c10d.recv(tensors, static_cast<int>(1 - rank_), /*tag=*/0);
  });
}

at::Tensor ProcessGroup::all_reduced(const at::Tensor& x) {
  at::Tensor out = x.detach().clone(at::MemoryFormat::Contiguous);
  all_reduce({out}).wait();
  return out;
}

void ProcessGroup::barrier() {
  issue(Collective::kBarrier, {}, [](c10d::Backend& c10d) { return c10d.barrier(); }).wait();
}

}  // namespace troupe
