#include "troupe/train/optim/matrix_parts.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "troupe/core/check.h"

namespace troupe {
namespace {

// Every P-th matrix of a set, those that one rank computes.
struct Share {
  int64_t first, count;
};

// `before`: matrices in the sets before.
Share share_of(int64_t rank, int64_t ranks, int64_t before, int64_t count) {
  const int64_t first = ((rank - before) % ranks + ranks) % ranks;
  return {first, first < count ? (count - first + ranks - 1) / ranks : 0};
}

at::Tensor every(const at::Tensor& x, const Share& share, int64_t ranks) {
  return x.slice(0, share.first, share.first + (share.count - 1) * ranks + 1, ranks);
}

class Deal {
 public:
  Deal(const ProcessGroup& parts, const std::vector<MatrixParts>& all)
      : ranks_(parts.size()), rank_(parts.rank()), all_(all) {
    for (int64_t r = 0; r < ranks_; ++r) {
      int64_t elements = 0;
      each(r, [&](size_t, const at::Tensor& own) { elements += own.numel(); });
      to_.push_back(elements);
    }
    from_.assign(static_cast<size_t>(ranks_), to_[static_cast<size_t>(rank_)]);
  }

  // g(set, the matrices of it that `rank` computes), in order.
  template <class G>
  void each(int64_t rank, G&& g) const {
    int64_t before = 0;
    for (size_t i = 0; i < all_.size(); ++i) {
      const at::Tensor& own = all_[i].own;
      const Share share = share_of(rank, ranks_, before, own.size(0));
      if (share.count > 0) g(i, every(own, share, ranks_));
      before += own.size(0);
    }
  }
  at::Tensor sent() const {
    std::vector<at::Tensor> out;
    for (int64_t r = 0; r < ranks_; ++r) {
      each(r, [&](size_t, const at::Tensor& own) { out.push_back(own.reshape({-1, 1})); });
    }
    return at::cat(out);
  }
  const std::vector<int64_t>& to() const { return to_; }
  const std::vector<int64_t>& from() const { return from_; }  // equal: parts are

  // f of the matrices that came, in their place.
  void compute(const at::Tensor& came,
               const std::function<at::Tensor(const at::Tensor&)>& f) const {
    int64_t at = 0;
    each(rank_, [&](size_t set, const at::Tensor& own) {
      std::vector<at::Tensor> parts;
      for (int64_t r = 0; r < ranks_; ++r) {
        parts.push_back(came.narrow(0, r * from_[0] + at, own.numel()).view(own.sizes()));
      }
      const int64_t dim = all_[set].dim, length = own.size(dim);
      const at::Tensor whole = f(at::cat(parts, dim));
      TROUPE_CHECK(whole.size(dim) == ranks_ * length, "matrices of", whole.sizes(),
                   "from parts of", own.sizes());
      for (int64_t r = 0; r < ranks_; ++r) {
        parts[static_cast<size_t>(r)].copy_(whole.narrow(dim, r * length, length));
      }
      at += own.numel();
    });
  }

  void take_back(const at::Tensor& back) const {
    int64_t at = 0;
    for (int64_t r = 0; r < ranks_; ++r) {
      each(r, [&](size_t, const at::Tensor& own) {
        own.copy_(back.narrow(0, at, own.numel()).view(own.sizes()));
        at += own.numel();
      });
    }
  }

 private:
  int64_t ranks_, rank_;
  const std::vector<MatrixParts>& all_;
  std::vector<int64_t> to_, from_;
};

}  // namespace

void map_whole_matrices(ProcessGroup& parts, const std::vector<MatrixParts>& all,
                        const std::function<at::Tensor(const at::Tensor&)>& f) {
  if (all.empty()) return;
  const Deal deal(parts, all);
  const at::Tensor own = deal.sent();
  const at::Tensor came =
      at::empty({deal.from()[0] * parts.size(), 1}, own.options().requires_grad(false));
  parts.all_to_all(came, own, deal.from(), deal.to()).wait();
  deal.compute(came, f);
  parts.all_to_all(own, came, deal.to(), deal.from()).wait();
  deal.take_back(own);
}

}  // namespace troupe
