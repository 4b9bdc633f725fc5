#include "bench/control_plane/rank_exchange.h"

#include <algorithm>
#include <chrono>
#include <numeric>
#include <utility>

#include "troupe/core/check.h"

namespace troupe::control_plane {

namespace {

constexpr std::chrono::minutes kPatience{5};

}  // namespace

RankExchange::RankExchange(int64_t ranks)
    : offers_(static_cast<size_t>(ranks)), begins_(static_cast<size_t>(ranks)) {}

void RankExchange::meet() {
  std::unique_lock lock(mutex_);
  const int64_t round = round_;
  if (++there_ == std::ssize(offers_)) {
    there_ = 0;
    ++round_;
    changed_.notify_all();
  } else if (!changed_.wait_for(lock, kPatience, [&] { return round_ != round; })) {
    fail(Code::kRankLost, "an exchange between ranks", "a rank did not come");
  }
}

void RankExchange::run(int64_t rank, const AllToAllBytes& bytes) {
  const auto own = static_cast<size_t>(rank);
  offers_[own] = &bytes;
  begins_[own].assign(bytes.to.size(), 0);
  std::exclusive_scan(bytes.to.begin(), bytes.to.end(), begins_[own].begin(), int64_t{0});
  meet();
  auto in = bytes.in.begin();
  Sent sent;
  for (size_t r = 0; r < offers_.size(); ++r) {
    const int64_t size = bytes.from[r];
    if (offers_[r]->to[own] != size) {
      fail(Code::kRankLost, "an exchange between ranks", "rank", r, "sends", offers_[r]->to[own],
           "bytes where rank", rank, "expects", size);
    }
    const auto part =
        offers_[r]->out.subspan(static_cast<size_t>(begins_[r][own]), static_cast<size_t>(size));
    in = std::ranges::copy(part, in).out;
    if (r == own || bytes.to[r] == 0) continue;
    ++sent.messages;
    sent.bytes += bytes.to[r];
  }
  {
    const std::lock_guard lock(mutex_);
    sent_.messages += sent.messages;
    sent_.bytes += sent.bytes;
  }
  meet();
}

RankExchange::Sent RankExchange::take() {
  const std::lock_guard lock(mutex_);
  return std::exchange(sent_, {});
}

}  // namespace troupe::control_plane
