// A unit of fully_shard.h: the parameters of a module that are gathered together, and their
// gradients. For fully_shard.cpp and sharded_backwards.cpp alone.
//
// gather(), fetch(), scatter(), begin_backward(), reduce() and end_backward() are collectives:
// whether one is called, and what it sends, depends on nothing that differs over the ranks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/distributed/group/process_group.h"
#include "troupe/distributed/modules/fully_shard.h"

namespace troupe {

struct ShardedCall;

struct ShardedUnit : std::enable_shared_from_this<ShardedUnit> {
  struct Parameter {
    std::string name;
    at::Tensor whole;      // the module's tensor, in the memory of its row
    at::Tensor part = {};  // a view of this rank's range of the row
    size_t row = 0;
    int64_t offset = 0;       // in the row
    int64_t part_offset = 0;  // in the range
    bool used = false;        // it got a gradient in this backward
  };
  struct Row {
    at::Tensor whole;       // [N n], without memory while the unit does not compute
    at::Tensor range = {};  // [n]
    at::Tensor grad = {};   // [n], from the unit's reduction to the end of the backward
    bool trains = false;
  };
  class Hook;

  ShardedUnit(const std::shared_ptr<torch::nn::Module>& the_module,
              std::shared_ptr<ProcessGroup> the_group, const ShardOptions& the_options)
      : module(the_module), group(std::move(the_group)), options(the_options) {}

  void find_inner_units();
  void make_rows();
  void attach();

  void gather();  // for a call
  void fetch();   // the values of all ranks
  void scatter();
  void release();  // unless they are needed still
  void watch(const at::Tensor& y, const std::shared_ptr<ShardedCall>& call);
  uint32_t version() const;

  // A backward, in this order. `fetches`: whether a rank has not kept the values.
  bool is_kept() const { return is_whole && (waits_for_backward || in_backward) && is_current(); }
  void begin_backward(int the_task, bool fetches);
  void on_gradient(const Parameter& p);
  void reduce();
  // Of each parameter, whether it got a gradient; then, whether one came after reduce().
  std::vector<bool> gradients_here() const;
  void end_backward(const std::vector<bool>& on_any_rank);
  void leave_backward(int the_task);  // no collective: also one that threw

  c10::Device device() const { return rows.front().range.device(); }
  bool is_current() const { return whole_version == version(); }
  bool owns(const at::Tensor& whole) const;
  const Parameter& find(const at::Tensor& whole) const;

  std::shared_ptr<torch::nn::Module> module;
  std::shared_ptr<ProcessGroup> group;
  ShardOptions options;
  std::vector<std::shared_ptr<ShardedUnit>> inner;  // units within, in order of their parameters
  std::vector<Parameter> parameters;                // of this unit alone
  std::vector<Row> rows;                            // one a type
  size_t num_trained = 0;                           // parameters that require a gradient
  int64_t number = 0;                               // of the group's units
  std::optional<c10::Stream> stream;  // on a GPU: of the last call, and so of its backward
  bool is_whole = false;
  uint32_t whole_version = 0;       // of the values that were gathered
  int64_t calls = 0;                // that run
  bool waits_for_backward = false;  // kept whole between forward and backward
  bool in_backward = false;         // begun and not reduced, on every rank
  bool needs_values = false;        // begun, and gradients may still come on this rank
  int task = -1;                    // autograd's number of the backward that runs
  size_t arrived = 0;               // gradients in it

 private:
  static std::shared_ptr<ShardedUnit> owner_of(const at::Tensor& parameter);
  void make_row(const std::vector<size_t>& members);
};

}  // namespace troupe
