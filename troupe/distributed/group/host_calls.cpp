// Calls of a group whose ranks need few connections (process_group.h): of messages, along a tree or
// between those that have something for each other.
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/group/group_backend.h"
#include "troupe/distributed/group/process_group.h"

namespace troupe {
namespace {

constexpr int kSumTag = 1, kExchangeTag = 2;  // messages of a group of two have 0

// Messages that are under way. Gloo's sends and receives of one pair are in order.
class Messages {
 public:
  Messages(c10d::Backend& backend, int tag) : backend_(backend), tag_(tag) {}

  void send(const at::Tensor& x, int64_t to) {
    tensors_.push_back({x});
    works_.push_back(backend_.send(tensors_.back(), static_cast<int>(to), tag_));
  }
  void recv(const at::Tensor& x, int64_t from) {
    tensors_.push_back({x});
    works_.push_back(backend_.recv(tensors_.back(), static_cast<int>(from), tag_));
  }
  void wait() {
    for (const auto& work : works_) work->wait();
    works_.clear();
    tensors_.clear();
  }

 private:
  c10d::Backend& backend_;
  int tag_;
  std::vector<std::vector<at::Tensor>> tensors_;
  std::vector<c10::intrusive_ptr<c10d::Work>> works_;
};

// Where each rank's part of a tensor of rows begins; one more at the end.
std::vector<int64_t> begins_of(const std::vector<int64_t>& rows) {
  std::vector<int64_t> out{0};
  for (const int64_t n : rows) out.push_back(out.back() + n);
  return out;
}

}  // namespace

bool ProcessGroup::over_gloo() const {
  return backend_ != nullptr && members_->backend == "gloo";
}

at::Tensor ProcessGroup::sum_of_few(const at::Tensor& x, int64_t width) {
  TROUPE_CHECK(width > 0, "a tree of width", width);
  if (!over_gloo()) return all_reduced(x);
  at::Tensor out = x.detach().clone(at::MemoryFormat::Contiguous);
  carry_out(Collective::kAllReduce, static_cast<int64_t>(out.nbytes()), [&](Backend& backend) {
    Messages messages(*backend.c10d, kSumTag);
    const int64_t first = rank_ * width + 1, end = std::min(size(), first + width);
    std::vector<at::Tensor> parts;
    for (int64_t child = first; child < end; ++child) {
      parts.push_back(at::empty_like(out));
      messages.recv(parts.back(), child);
    }
    messages.wait();
    for (const at::Tensor& part : parts) out.add_(part);
    if (rank_ > 0) {
      messages.send(out, (rank_ - 1) / width);
      messages.wait();
      messages.recv(out, (rank_ - 1) / width);
      messages.wait();
    }
    for (int64_t child = first; child < end; ++child) messages.send(out, child);
    messages.wait();
  });
  return out;
}

void ProcessGroup::exchange(const at::Tensor& out, const at::Tensor& in,
                            const std::vector<int64_t>& from_rows,
                            const std::vector<int64_t>& to_rows) {
  check_rows(out, in, from_rows, to_rows);
  if (!over_gloo()) return all_to_all(out, in, from_rows, to_rows).wait();
  const int64_t bytes = static_cast<int64_t>(out.nbytes() + in.nbytes());
  const std::vector<int64_t> from = begins_of(from_rows), to = begins_of(to_rows);
  carry_out(Collective::kAllToAll, bytes, [&](Backend& backend) {
    Messages messages(*backend.c10d, kExchangeTag);
    for (int64_t r = 0; r < size(); ++r) {
      const auto at = static_cast<size_t>(r);
      if (r == rank_ || from_rows[at] == 0) continue;
      messages.recv(out.narrow(0, from[at], from_rows[at]), r);
    }
    for (int64_t r = 0; r < size(); ++r) {
      const auto at = static_cast<size_t>(r);
      if (to_rows[at] == 0) continue;
      const at::Tensor part = in.narrow(0, to[at], to_rows[at]);
      if (r == rank_) {
        out.narrow(0, from[at], from_rows[at]).copy_(part);
      } else {
        messages.send(part, r);
      }
    }
    messages.wait();
  });
}

}  // namespace troupe
