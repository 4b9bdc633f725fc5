#include "troupe/distributed/group/thread_backend.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <map>
#include <mutex>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

namespace troupe {

class ThreadRanks {
 public:
  // What one rank hands over of a call.
  struct Call {
    std::string text;  // equal on all ranks
    std::vector<at::Tensor> outs = {}, ins = {};
    std::vector<int64_t> receive = {}, send = {};  // rows, of an exchange
  };
  // One call of all ranks of a group, or a message between two of them, the sender first.
  struct Round {
    explicit Round(std::vector<int> of)
        : members(std::move(of)), calls(members.size()), there(members.size()) {}
    std::vector<int> members;  // indices in the group
    std::vector<Call> calls;
    std::vector<char> there;
    size_t arrived = 0;
    bool done = false;
  };
  // Rounds of one kind of one group: its collectives, or its messages from one rank to another.
  struct Room {
    std::map<int64_t, std::shared_ptr<Round>> rounds;
    std::map<int, int64_t> next;           // by index in the group
    std::map<int, std::string> last_call;  // likewise
  };

  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::string, Room> rooms;
  std::string failure;  // empty: none
};

namespace {

using Tensors = std::vector<at::Tensor>;
using WorkPtr = c10::intrusive_ptr<c10d::Work>;

using Call = ThreadRanks::Call;
using Perform = std::function<void(std::vector<Call>& calls)>;

at::Tensor flat(const at::Tensor& x) {
  return x.view(-1);
}

void sum_everywhere(std::vector<Call>& calls) {
  for (size_t i = 0; i < calls[0].outs.size(); ++i) {
    at::Tensor sum = calls[0].outs[i].clone();
    for (size_t r = 1; r < calls.size(); ++r) sum.add_(calls[r].outs[i].view_as(sum));
    for (Call& call : calls) call.outs[i].copy_(sum.view_as(call.outs[i]));
  }
}

void add_parts(std::vector<Call>& calls) {
  for (size_t i = 0; i < calls[0].outs.size(); ++i) {
    for (size_t r = 0; r < calls.size(); ++r) {
      const at::Tensor out = flat(calls[r].outs[i]);
      const int64_t n = out.numel(), from = static_cast<int64_t>(r) * n;
      at::Tensor sum = flat(calls[0].ins[i]).narrow(0, from, n).clone();
      for (size_t s = 1; s < calls.size(); ++s) {
        sum.add_(flat(calls[s].ins[i]).narrow(0, from, n));
      }
      out.copy_(sum);
    }
  }
}

void gather_all(std::vector<Call>& calls) {
  for (size_t i = 0; i < calls[0].outs.size(); ++i) {
    const int64_t n = calls[0].ins[i].numel();
    if (n == 0) continue;
    for (Call& to : calls) {
      for (size_t s = 0; s < calls.size(); ++s) {
        const at::Tensor part = flat(to.outs[i]).narrow(0, static_cast<int64_t>(s) * n, n);
        const at::Tensor in = calls[s].ins[i].reshape({-1});
        if (part.data_ptr() != in.data_ptr()) part.copy_(in);
      }
    }
  }
}

void pass_on(std::vector<Call>& calls) {
  for (size_t i = 0; i < calls[0].ins.size(); ++i) {
    calls[1].outs[i].copy_(calls[0].ins[i].view_as(calls[1].outs[i]));
  }
}

void exchange_all(std::vector<Call>& calls) {
  for (size_t r = 0; r < calls.size(); ++r) {
    int64_t at = 0;
    for (size_t s = 0; s < calls.size(); ++s) {
      const std::vector<int64_t>& send = calls[s].send;
      const int64_t rows = send[r];
      if (rows != calls[r].receive[s]) {
        throw std::runtime_error("rank " + std::to_string(s) + " of the group sends " +
                                 std::to_string(rows) + " rows, rank " + std::to_string(r) +
                                 " expects " + std::to_string(calls[r].receive[s]));
      }
      int64_t from = 0;
      for (size_t i = 0; i < r; ++i) from += send[i];
      calls[r].outs[0].narrow(0, at, rows).copy_(calls[s].ins[0].narrow(0, from, rows));
      at += rows;
    }
  }
}

// Describes a call, for comparison and for messages. In an exchange ranks have different rows.
std::string text_of(const char* what, const Tensors& tensors, bool rows_differ = false) {
  std::ostringstream os;
  os << what;
  for (const at::Tensor& x : tensors) {
    os << ' ' << x.scalar_type() << " [";
    if (!rows_differ) os << x.numel();
    if (rows_differ && x.dim() > 1) os << ".., " << x.size(-1);
    os << ']';
  }
  return os.str();
}

}  // namespace

std::shared_ptr<ThreadRanks> thread_ranks() {
  return std::make_shared<ThreadRanks>();
}

void abandon(ThreadRanks& ranks, const std::string& why) {
  const std::lock_guard lock(ranks.mutex);
  if (ranks.failure.empty()) ranks.failure = why;
  ranks.changed.notify_all();
}

namespace {

class ThreadWork : public c10d::Work {
 public:
  // `room` of the shared ones.
  ThreadWork(std::shared_ptr<ThreadRanks> shared, std::shared_ptr<ThreadRanks::Round> round,
             ThreadGroup group, std::string room)
      : shared_(std::move(shared)),
        round_(std::move(round)),
        group_(std::move(group)),
        room_(std::move(room)) {}
  bool isCompleted() override {
    const std::lock_guard lock(shared_->mutex);
    return round_->done;
  }
  bool isSuccess() const override { return true; }
  bool wait(std::chrono::milliseconds) override {
    std::unique_lock lock(shared_->mutex);
    shared_->changed.wait_for(lock, group_.timeout,
                              [&] { return round_->done || !shared_->failure.empty(); });
    if (round_->done) return true;
    if (shared_->failure.empty()) shared_->failure = missing();
    shared_->changed.notify_all();
    throw std::runtime_error(shared_->failure);
  }

 private:
  std::string missing() const {
    const ThreadRanks::Room& room = shared_->rooms[room_];
    const auto own = std::ranges::find(round_->members, group_.index) - round_->members.begin();
    std::string out;
    for (size_t i = 0; i < round_->there.size(); ++i) {
      if (round_->there[i] != 0) continue;
      const auto last = room.last_call.find(round_->members[i]);
      const auto rank = group_.ranks[static_cast<size_t>(round_->members[i])];
      out += (out.empty() ? "" : "; ") + ("rank " + std::to_string(rank)) + " did not come to " +
             round_->calls[static_cast<size_t>(own)].text + "; its last call of this group: " +
             (last == room.last_call.end() ? "none" : last->second);
    }
    return out;
  }

  std::shared_ptr<ThreadRanks> shared_;
  std::shared_ptr<ThreadRanks::Round> round_;
  ThreadGroup group_;
  std::string room_;
};

class ThreadBackend : public c10d::Backend {
 public:
  ThreadBackend(std::shared_ptr<ThreadRanks> shared, ThreadGroup group)
      : Backend(group.index, static_cast<int>(group.ranks.size())),
        shared_(std::move(shared)),
        group_(std::move(group)) {}
  const std::string getBackendName() const override { return "threads"; }

  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override {
    return issue({.text = text_of("sum", tensors), .outs = tensors}, sum_everywhere);
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions&) override {
    return allreduce(tensors, {});
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::ReduceScatterOptions&) override {
    return issue({.text = text_of("sum of shards", ins), .outs = outs, .ins = ins}, add_parts);
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outs, Tensors& ins,
                                          const c10d::AllgatherOptions&) override {
    return issue({.text = text_of("gather", ins), .outs = outs, .ins = ins}, gather_all);
  }
  WorkPtr alltoall_base(at::Tensor& out, at::Tensor& in, std::vector<int64_t>& receive,
                        std::vector<int64_t>& send, const c10d::AllToAllOptions&) override {
    return issue({.text = text_of("exchange", {in}, /*rows_differ=*/true),
                  .outs = {out},
                  .ins = {in},
                  .receive = receive,
                  .send = send},
                 exchange_all);
  }
  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& options) override {
    const auto root = static_cast<size_t>(options.rootRank);
    return issue(
        {.text = text_of("broadcast", tensors) + " of " + std::to_string(root), .outs = tensors},
        [root](std::vector<Call>& calls) {
          for (size_t r = 0; r < calls.size(); ++r) {
            if (r != root) calls[r].outs[0].copy_(calls[root].outs[0]);
          }
        });
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override {
    return issue({.text = "barrier"}, [](std::vector<Call>&) {});
  }
  WorkPtr send(Tensors& tensors, int to, int) override {
    return message(rank_, to, {.text = text_of("message", tensors), .ins = tensors});
  }
  WorkPtr recv(Tensors& tensors, int from, int) override {
    return message(from, rank_, {.text = text_of("message", tensors), .outs = tensors});
  }

 private:
  WorkPtr message(int from, int to, Call call) {
    const std::string room =
        group_.key + " from " + std::to_string(from) + " to " + std::to_string(to);
    return rendezvous(room, {from, to}, std::move(call), pass_on);
  }

  WorkPtr issue(Call call, const Perform& perform) {
    std::vector<int> all(group_.ranks.size());
    std::iota(all.begin(), all.end(), 0);
    return rendezvous(group_.key, std::move(all), std::move(call), perform);
  }

  WorkPtr rendezvous(const std::string& name, std::vector<int> members, Call call,
                     const Perform& perform) {
    const at::NoGradGuard no_grad;
    const std::lock_guard lock(shared_->mutex);
    ThreadRanks::Room& room = shared_->rooms[name];
    const auto slot = static_cast<size_t>(std::ranges::find(members, rank_) - members.begin());
    const int64_t number = room.next[rank_]++;
    room.last_call[rank_] = call.text + ", number " + std::to_string(number);
    if (!shared_->failure.empty()) throw std::runtime_error(shared_->failure);
    std::shared_ptr<ThreadRanks::Round>& round = room.rounds[number];
    if (!round) round = std::make_shared<ThreadRanks::Round>(std::move(members));
    const auto rank_at = [&](size_t i) {
      return std::to_string(group_.ranks[static_cast<size_t>(round->members[i])]);
    };
    for (size_t r = 0; r < round->there.size(); ++r) {
      if (round->there[r] == 0 || round->calls[r].text == call.text) continue;
      fail_all("rank " + rank_at(r) + " calls " + round->calls[r].text + ", rank " + rank_at(slot) +
               " calls " + call.text + ": call " + std::to_string(number) + " of " + name);
    }
    round->calls[slot] = std::move(call);
    round->there[slot] = 1;
    const std::shared_ptr<ThreadRanks::Round> own = round;
    if (++own->arrived == own->calls.size()) {
      try {
        perform(own->calls);
      } catch (const std::exception& e) {
        fail_all(e.what());
      }
      own->done = true;
      own->calls.clear();
      room.rounds.erase(number);
      shared_->changed.notify_all();
    }
    return c10::make_intrusive<ThreadWork>(shared_, own, group_, name);
  }

  [[noreturn]] void fail_all(const std::string& why) {
    shared_->failure = why;
    shared_->changed.notify_all();
    throw std::runtime_error(why);
  }

  std::shared_ptr<ThreadRanks> shared_;
  ThreadGroup group_;
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> thread_backend(const std::shared_ptr<ThreadRanks>& shared,
                                                 const ThreadGroup& group) {
  return c10::make_intrusive<ThreadBackend>(shared, group);
}

}  // namespace troupe
