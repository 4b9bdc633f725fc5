// What the dispatchers between processes have in common: all but how rows travel. A subclass
// implements send(), rows(), stage_grad() and the three functions below; L is its lease. packed()
// encodes rows of x or grad_out for the wire, and unpacked() decodes received rows into source
// rows. One whose rows travel by no collective also overrides arrived() and summed().
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/dispatch/dispatch_mode.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/dispatch/owner_table.h"
#include "troupe/distributed/dispatch/rank_plan.h"
#include "troupe/distributed/dispatch/wire.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/group/symmetric_heap.h"
#include "troupe/ops/combine.h"

namespace troupe {

// Rows on their way: by a collective, or in memory that the ranks share. There they begin at byte
// `at` of a rank's part, and `rows` is an empty tensor of their type and width.
struct Travelling {
  at::Tensor rows;
  Pending pending = {};
  std::shared_ptr<Transfer> transfer = {};
  int64_t at = 0;
};

struct GroupLease : Lease {
  // From stage and route, until rows().
  at::Tensor x_TD;
  Routed routed;
  int64_t width = 0;  // D, and the type: of the rows of x and of their gradients
  at::ScalarType type = at::kFloat;
  // From rows(), for the ways back and for backward.
  int64_t choices = 0;   // K
  Plan sums, slot_sums;  // what comes back, added for each token; kExact: for each slot
  bool sent = false;     // and not yet received
  Travelling grad_out, back, grad_source, grad_scores;
};

template <class L>
class GroupDispatcher : public Dispatcher {
 public:
  Handle stage(const at::Tensor& x_TD) override {
    auto lease = std::make_shared<L>();
    lease->x_TD = x_TD.detach();
    lease->width = x_TD.size(1);
    lease->type = x_TD.scalar_type();
    return lease;
  }

  void route(const Handle& handle, const Routed& routed) override {
    L& lease = of(handle);
    TROUPE_CHECK(lease.x_TD.defined(), "route comes once, after stage");
    check_routed(routed, lease.x_TD);
    lease.routed = routed;
    announce(lease);
  }

  void send_back(const Handle& handle, const at::Tensor& y_SD) override {
    L& lease = of(handle);
    lease.back = sent_back(lease, y_SD);
  }

  at::Tensor combine(const Handle& handle) override {
    L& lease = of(handle);
    return summed(lease, lease.back, lease.sums);
  }

  at::Tensor rows_grad(const Handle& handle) override {
    L& lease = of(handle);
    return unpacked(lease, source_rows(lease, arrived(lease, lease.grad_out)));
  }

  void send_back_grad(const Handle& handle, const at::Tensor& grad_source_SD,
                      const at::Tensor& grad_scores_SK) override {
    L& lease = of(handle);
    if (grad_source_SD.defined()) lease.grad_source = sent_back(lease, grad_source_SD);
    if (grad_scores_SK.defined()) lease.grad_scores = sent_back(lease, grad_scores_SK);
  }

  DispatchGradients combine_grad(const Handle& handle) override {
    L& lease = of(handle);
    DispatchGradients out;
    if (lease.grad_source.rows.defined()) {
      out.x_TD = summed(lease, lease.grad_source, lease.sums);
    }
    if (!lease.grad_scores.rows.defined()) return out;
    out.scores_TK = summed(lease, lease.grad_scores, exact() ? lease.slot_sums : lease.sums)
                        .reshape({-1, lease.choices});
    return out;
  }

  void release(const Handle& handle) override { of(handle) = L(); }

  bool needs_host_counts() const override { return true; }
  const ExpertPlacement& placement() const override { return placement_; }
  void place(const ExpertPlacement& placement) override {
    check_placed_on(placement, *ranks_);
    const auto held = static_cast<int64_t>(placement.held_by(ranks_->rank()).size());
    TROUPE_CHECK(
        placement.experts() == placement_.experts() && placement.slices() == placement_.slices(),
        "-", placement.experts(), "experts in", placement.slices(), "slices are not the",
        placement_.experts(), "in", placement_.slices());
    TROUPE_CHECK(held == held_, "this rank would hold", held, "experts, and holds", held_);
    placement_ = placement;
    table_ = OwnerTable(placement_);
  }
  int64_t rank() const override { return ranks_->rank(); }
  bool holds_all_experts() const override { return false; }
  std::string description() const override {
    return std::string(name_) + ", " + to_text(mode_) + ": " +
           std::to_string(placement_.experts()) + " experts on " + ranks_->description() +
           (wire_ == WireType::kInt8 ? ", rows out in int8" : "");
  }

 protected:
  GroupDispatcher(const char* name, std::shared_ptr<ProcessGroup> ranks,
                  const ExpertPlacement& placement, DispatchMode mode, WireType wire)
      : name_(name),
        ranks_(std::move(ranks)),
        placement_(placement),
        mode_(mode),
        wire_(ranks_->size() == 1 ? WireType::kNative : wire),  // one rank sends nothing
        table_(placement_),
        held_(static_cast<int64_t>(placement_.held_by(ranks_->rank()).size())) {
    check_placed_on(placement_, *ranks_);
    TROUPE_CHECK(mode != DispatchMode::kExact || wire == WireType::kNative,
                 "rows that int8 rounds are not those of one process: exact or int8");
  }

  // What route() may already tell the other ranks.
  virtual void announce(L& /*lease*/) {}
  // The source buffer out of the rows that came, packed as they are.
  virtual at::Tensor source_rows(const L& lease, const at::Tensor& rows) const = 0;
  // Rows of the source buffer begin to go, each to the rank that its token is of.
  virtual Travelling sent_back(const L& lease, const at::Tensor& y_SX) const = 0;
  // Waits for rows of other ranks, or for those that came back, which it adds for each token.
  virtual at::Tensor arrived(const L& /*lease*/, Travelling& what) const {
    what.pending.wait();
    return std::exchange(what.rows, {});
  }
  virtual at::Tensor summed(const L& lease, Travelling& what, const Plan& sums) const {
    return troupe::combine(arrived(lease, what), sums);
  }

  static L& of(const Handle& handle) {
    TROUPE_CHECK(handle != nullptr, "the handle's lease has ended");
    return static_cast<L&>(*handle);
  }
  // What send() begins with.
  static void begin_to_send(L& lease) {
    TROUPE_CHECK(lease.routed.ids_TK.defined() && !lease.sent, "send comes once, after route");
    lease.choices = lease.routed.ids_TK.size(1);
    lease.sent = true;
  }
  // What rows() begins with: the choices, which nothing reads after it.
  static Routed take_routed(L& lease) {
    TROUPE_CHECK(std::exchange(lease.sent, false), "rows comes once, after send");
    return std::exchange(lease.routed, {});
  }
  at::Tensor packed(const at::Tensor& x_TD) const {
    return wire_ == WireType::kInt8 ? packed_rows(x_TD) : x_TD;
  }
  at::Tensor packed(const at::Tensor& x_TD, const at::Tensor& tokens_N) const {
    return wire_ == WireType::kInt8 ? packed_rows(x_TD, tokens_N) : x_TD.index_select(0, tokens_N);
  }
  at::Tensor unpacked(const L& lease, const at::Tensor& rows_SX) const {
    return wire_ == WireType::kInt8 ? unpacked_rows(rows_SX, lease.width, lease.type) : rows_SX;
  }
  bool exact() const { return mode_ == DispatchMode::kExact; }

  const char* name_;
  std::shared_ptr<ProcessGroup> ranks_;
  ExpertPlacement placement_;
  DispatchMode mode_;
  WireType wire_;
  OwnerTable table_;
  int64_t held_;  // experts of this rank
};

}  // namespace troupe
