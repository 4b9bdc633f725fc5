#include "troupe/distributed/dispatch/null_dispatcher.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/where.h>

#include <iterator>

#include "troupe/distributed/dispatch/forwarding_dispatcher.h"
#include "troupe/distributed/dispatch/local_dispatcher.h"
#include "troupe/distributed/group/process_group.h"

namespace troupe {
namespace {

class NullDispatcher : public ForwardingDispatcher {
 public:
  NullDispatcher(int64_t rank, const ExpertPlacement& placement)
      : ForwardingDispatcher(local_dispatcher(std::ssize(placement.held_by(rank)))),
        rank_(rank),
        placement_(placement) {}

  std::unique_ptr<RowExchange> send(const at::Tensor& x_TD, const Routed& routed) override {
    Routed own = routed;
    const int64_t held = std::ssize(placement_.held_by(rank_));
    own.ids_TK = at::where(routed.ids_TK < 0, routed.ids_TK, at::remainder(routed.ids_TK, held))
                     .to(routed.ids_TK.scalar_type());
    return ForwardingDispatcher::send(x_TD, own);
  }

  DispatcherInfo info() const override {
    return {.description = "no dispatch: rows stay on their rank",
            .held = placement_.held_by(rank_),
            .slices = placement_.slices(),
            .slice = placement_.slice_of(rank_)};
  }
  void place(const ExpertPlacement& placement) override { placement_ = placement; }

 private:
  const int64_t rank_;
  ExpertPlacement placement_;
};

}  // namespace

std::unique_ptr<Dispatcher> null_dispatcher(int64_t rank, const ExpertPlacement& placement) {
  return std::make_unique<NullDispatcher>(rank, placement);
}

std::unique_ptr<Dispatcher> NullDispatch::build(const NodeGroups& groups,
                                                const ExpertPlacement& placement,
                                                const DispatcherOptions& /*options*/) const {
  return null_dispatcher(groups.all->rank(), placement);
}

std::string NullDispatch::why(const ExpertRanks& /*ranks*/) const {
  return "as the recipe says, for timing alone: no row leaves its rank";
}

Traffic NullDispatch::traffic(const TrafficShape& /*shape*/) const {
  return {.received = 1};
}

}  // namespace troupe
