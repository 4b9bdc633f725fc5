// Replicas of any module of LibTorch: each rank computes on rows of its own, and all step alike.
//
//   auto model = std::make_shared<Model>();
//   troupe::DistributedDataParallel replicas(*model, world.all());
//   torch::optim::AdamW optimizer(model->parameters());
//   loss(model->forward(x)).backward();   // gradients are means over the ranks when it returns
//   optimizer.step();
//
// Construction makes parameters and buffers those of rank 0 of the group. Of each parameter p
//   p.grad = sum_r (p.grad of rank r / N)
// with zeros for a rank whose backward did not come to p. Where none did, p.grad stays as it is.
// Gradients are summed in buckets, filled in reverse order of registration, all of one type; the
// all-reduce of a bucket begins when its last gradient is there and those of earlier buckets have
// begun, while the backward goes on.
//
// Every rank makes the same backwards, each of which comes to a parameter of the module on every
// rank. Nothing else communicates over the group in a backward: another replica or a sharded module
// in the same graph has a group of its own (a channel of World::group). Gradients are dense;
// create_graph is refused. A rank that is lost is E6001, thrown by backward(). A group of one
// changes nothing. The bits of a mean depend on the group alone.
//
// The module outlives this object; its hooks go with it. A parameter has one such hook: a module
// that is sharded (fully_shard.h), or another's replica already, is refused.
#pragma once

#include <cstdint>
#include <memory>

#include "troupe/distributed/group/process_group.h"

namespace torch::nn {
class Module;
}

namespace troupe {

struct DataParallelOptions {
  int64_t bucket_bytes = int64_t{25} << 20;  // a bucket is full with these; at least 1
};

class DistributedDataParallel {
  struct Replica;

 public:
  DistributedDataParallel(torch::nn::Module& module, std::shared_ptr<ProcessGroup> group,
                          const DataParallelOptions& options = {});
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;
  ~DistributedDataParallel();

  // While one lives, backward() accumulates gradients on this rank and communicates nothing. The
  // first backward() after it averages the accumulated gradients over the ranks. Every rank must
  // have one over the same backwards.
  class NoSync {
   public:
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;
    ~NoSync();

   private:
    friend class DistributedDataParallel;
    explicit NoSync(std::shared_ptr<Replica> replica);
    std::shared_ptr<Replica> replica_;
  };
  [[nodiscard]] NoSync no_sync() { return NoSync(replica_); }

  // Makes buffers rank 0's again, such as the running means of a batch norm. Collective.
  void broadcast_buffers();

  int64_t num_buckets() const;
  // Buckets whose all-reduce has begun in the backward that runs, or had in the last one before
  // its end.
  int64_t buckets_begun() const;

 private:
  std::shared_ptr<Replica> replica_;
};

}  // namespace troupe
