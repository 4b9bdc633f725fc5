// What the dispatchers between processes have in common: all but how rows travel. Such a dispatcher
// is a subclass of GroupExchange and a function that begins one. The subclass implements
// receive_rows(), send_grads() and the two functions below; packed() encodes rows of x or grad_out
// for the wire, and unpacked() decodes received rows into source rows. One whose rows travel by no
// collective also overrides arrived() and summed().
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "troupe/distributed/dispatch/dispatch_mode.h"
#include "troupe/distributed/dispatch/dispatcher.h"
#include "troupe/distributed/dispatch/dispatcher_config.h"
#include "troupe/distributed/dispatch/owner_table.h"
#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/group/split.h"
#include "troupe/distributed/group/symmetric_heap.h"
#include "troupe/ops/support/plan.h"

namespace troupe {

// The ranks that share experts, the experts of each, and how rows go between them.
struct ExpertGroup {
  ExpertGroup(NodeGroups groups, const ExpertPlacement& placement,
              const DispatcherOptions& options);
  bool exact() const { return options.mode == DispatchMode::kExact; }

  NodeGroups groups;
  ExpertPlacement placement;
  DispatcherOptions options;  // native rows where one rank sends none
  OwnerTable table;
  int64_t held;  // experts of this rank
};

// Rows on their way: by a collective, or in memory that the ranks share. There they begin at byte
// `at` of a rank's part, and `rows` is an empty tensor of their type and width.
struct Traveling {
  at::Tensor rows;
  Pending pending = {};
  std::shared_ptr<Transfer> transfer = {};
  int64_t at = 0;
};

class GroupExchange : public RowExchange {
 public:
  void send_results(const at::Tensor& y_SD) override { back_ = sent_back(y_SD); }
  at::Tensor receive_results() override { return summed(back_, sums_); }
  at::Tensor receive_grads() override { return unpacked(source_rows(arrived(grad_out_))); }
  void send_row_grads(const at::Tensor& grad_source_SD, const at::Tensor& grad_scores_SK) override;
  DispatchGradients receive_row_grads() override;

 protected:
  GroupExchange(std::shared_ptr<ExpertGroup> experts, const at::Tensor& x_TD, const Routed& routed);

  // The source buffer out of the rows that came, packed as they are.
  virtual at::Tensor source_rows(const at::Tensor& rows) const = 0;
  // Rows of the source buffer begin to go, each to the rank that its token is of.
  virtual Traveling sent_back(const at::Tensor& y_SX) const = 0;
  // Waits for rows of other ranks, or for those that came back, which it adds for each token.
  virtual at::Tensor arrived(Traveling& what) const;
  virtual at::Tensor summed(Traveling& what, const Plan& sums) const;

  at::Tensor packed(const at::Tensor& x_TD) const;
  at::Tensor packed(const at::Tensor& x_TD, const at::Tensor& tokens_N) const;
  at::Tensor unpacked(const at::Tensor& rows_SX) const;
  // The plan of source rows with these ids [S, K] of local experts, of which at most `rows` are
  // routed (-1: no host knows), and `capacity` of all ranks together; `lost` as within_budget().
  Plan rows_plan(const at::Tensor& ids_SK, int64_t capacity, at::Tensor& lost,
                 int64_t rows = -1) const;

  // Begins to send the first `split.sent()` rows of `most`, which has room for the most there may be.
  static void send_first(ProcessGroup& group, const RankSplit& split, const at::Tensor& most,
                         Traveling& what);
  // What comes back of rows that went to all ranks, of which one has at most `most` tokens.
  void keep_gathered_sums(const at::Tensor& ids_TK, int64_t most);

  bool exact() const { return experts_->exact(); }
  ProcessGroup& ranks() const { return *experts_->groups.all; }

  const std::shared_ptr<ExpertGroup> experts_;
  const int64_t choices_;  // K
  const at::ScalarType score_type_;
  Plan sums_, slot_sums_;  // what comes back, added for each token; kExact: for each slot
  Traveling grad_out_;

 private:
  const int64_t alignment_, budget_;
  const int64_t width_;  // D, and the type: of the rows of x and of their gradients
  const at::ScalarType type_;
  Traveling back_, grad_source_, grad_scores_;
};

// Begins to move rows; x and the routing are those of Dispatcher::send(), and checked.
using BeginExchange = std::unique_ptr<RowExchange> (*)(std::shared_ptr<ExpertGroup> experts,
                                                       const at::Tensor& x_TD,
                                                       const Routed& routed);

template <class Exchange>
std::unique_ptr<RowExchange> begin_exchange(std::shared_ptr<ExpertGroup> experts,
                                            const at::Tensor& x_TD, const Routed& routed) {
  return std::make_unique<Exchange>(std::move(experts), x_TD, routed);
}

struct GroupDispatcherForm {
  std::string name;
  bool host_reads = true;
  BeginExchange begin;
};
std::unique_ptr<Dispatcher> group_dispatcher(GroupDispatcherForm form, NodeGroups groups,
                                             const ExpertPlacement& placement,
                                             const DispatcherOptions& options);

}  // namespace troupe
