// How the ranks of a pipeline pass outputs of units on, and the gradients of these back. Each pair
// of neighbors has a group of two, a communicator of its own, for each direction and kind: both
// ends see one queue, and no receive holds up what goes the other way (PL6).
//
//   channels.send(1, StageMessage::kActivation, h);                      // returns at once
//   Pending p = channels.recv(1, StageMessage::kGradient, gradient);  // valid after p.wait()
//
// A peer is an index in the pipeline. At most `depth` messages of a channel are under way: the next
// send waits for the first of them (PL7). What is sent must not change until then; it is kept.
//
// On GPUs a message of NCCL is a kernel that runs until its peer has come, and a kernel of ours that
// runs for the first time may wait for all that run: the driver makes room for it. Two ranks that
// compute something for the first time while messages are under way then wait for each other for
// ever. So what is sent between begin(first: true) and finish() goes through host memory (PL14).
#pragma once

#include <c10/core/Device.h>

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "troupe/core/text/text.h"
#include "troupe/distributed/group/process_group.h"

namespace troupe {

enum class StageMessage : uint8_t { kActivation, kGradient };
constexpr auto names_of(StageMessage) {
  return std::array{Named{"activations", StageMessage::kActivation},
                    Named{"gradients", StageMessage::kGradient}};
}

class StageChannels {
 public:
  struct Shape {
    std::vector<int64_t> ranks = {};  // of the world, by index in the pipeline
    int own = 0;                      // index of this rank
    // (from, to): activations go so, their gradients from `to` to `from`.
    std::vector<std::pair<int, int>> links = {};
    int depth = 2;
    c10::Device device = c10::kCPU;  // of the tensors that are sent
  };
  // Makes the group of two ranks of the world under a name.
  using MakeGroup = std::function<std::shared_ptr<ProcessGroup>(const std::vector<int64_t>& ranks,
                                                                const std::string& channel)>;

  StageChannels() = default;  // no pipeline
  // Makes the groups of this rank's links in an order that cannot deadlock, and sends one number
  // over each, so that no communicator is made in the middle of a step (MF1). Each rank of the
  // pipeline calls with the same links.
  // `make_first`: makes the groups that do not occupy the device (GroupOptions::staged), if any.
  StageChannels(Shape shape, const MakeGroup& make, const MakeGroup& make_first = {});

  // `first`: whether ranks may compute something that they have not yet computed. Both ends of each
  // channel call with the same.
  void begin(bool first) { first_ = first; }

  void send(int peer, StageMessage cargo, const at::Tensor& x);
  Pending recv(int peer, StageMessage cargo, const at::Tensor& x);
  void finish();  // until all that was sent has arrived
  int64_t rank_of(int peer) const { return shape_.ranks.at(static_cast<size_t>(peer)); }

 private:
  struct Channel {
    std::shared_ptr<ProcessGroup> pair;
    std::shared_ptr<ProcessGroup> first = {};  // for begin(first: true); absent: `pair`
    std::deque<Pending> under_way = {};        // sends
  };
  using Key = std::tuple<int, int, StageMessage>;  // from, to
  Channel& at(int from, int to, StageMessage cargo);
  ProcessGroup& group(Channel& channel) const;

  Shape shape_;
  std::map<Key, Channel> channels_;
  bool first_ = false;
};

}  // namespace troupe
