#include "troupe/distributed/group/stage_channels.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <set>

#include "troupe/core/check.h"

namespace troupe {

StageChannels::StageChannels(Shape shape, const MakeGroup& make, const MakeGroup& make_first)
    : shape_(std::move(shape)) {
  TROUPE_CHECK(shape_.depth >= 1, "a channel has room for", shape_.depth, "messages");
  std::set<std::tuple<int, int, StageMessage, int, int>>
      all;  // lower and higher rank, kind, from, to
  for (const auto& [from, to] : shape_.links) {
    if (from != shape_.own && to != shape_.own) continue;
    const int low = std::min(from, to), high = std::max(from, to);
    all.insert({low, high, StageMessage::kActivation, from, to});
    all.insert({low, high, StageMessage::kGradient, to, from});
  }
  // Each rank creates its channels in one global order of the links. That cannot deadlock: the ends
  // of the first link that is not yet created have none before it to wait for.
  std::vector<Pending> first;
  for (const auto& [low, high, cargo, from, to] : all) {
    const std::string name = to_text(cargo) + " to rank " + std::to_string(rank_of(to));
    Channel channel{.pair = make({rank_of(low), rank_of(high)}, name)};
    const at::Tensor one = at::zeros({1}, at::TensorOptions(shape_.device));
    if (make_first) channel.first = make_first({rank_of(low), rank_of(high)}, name);
    first.push_back(from == shape_.own ? channel.pair->send(one) : channel.pair->recv(one));
    channels_.emplace(Key{from, to, cargo}, std::move(channel));
  }
  for (Pending& message : first) message.wait();
}

StageChannels::Channel& StageChannels::at(int from, int to, StageMessage cargo) {
  const auto found = channels_.find({from, to, cargo});
  TROUPE_CHECK(found != channels_.end(), "there is no channel for", to_text(cargo), "from", from,
               "to", to, "of the pipeline");
  return found->second;
}

ProcessGroup& StageChannels::group(Channel& channel) const {
  return first_ && channel.first ? *channel.first : *channel.pair;
}

void StageChannels::send(int peer, StageMessage cargo, const at::Tensor& x) {
  Channel& channel = at(shape_.own, peer, cargo);
  while (std::ssize(channel.under_way) >= shape_.depth) {
    channel.under_way.front().wait();
    channel.under_way.pop_front();
  }
  channel.under_way.push_back(group(channel).send(x));
}

Pending StageChannels::recv(int peer, StageMessage cargo, const at::Tensor& x) {
  return group(at(peer, shape_.own, cargo)).recv(x);
}

void StageChannels::finish() {
  for (auto& [key, channel] : channels_) {
    for (Pending& message : channel.under_way) message.wait();
    channel.under_way.clear();
  }
}

}  // namespace troupe
