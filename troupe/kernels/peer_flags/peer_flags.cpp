#include "troupe/kernels/peer_flags/peer_flags.h"

#include "troupe/core/check.h"

namespace troupe {
namespace {

template <class Flags>
void check_flags(const Flags& flags, int64_t count) {
  TROUPE_CHECK(0 <= count && count <= kMostPeers, count, "flags, of at most", kMostPeers);
  for (int64_t i = 0; i < count; ++i) {
    TROUPE_CHECK(flags[static_cast<size_t>(i)] != nullptr, "flag", i, "of", count, "is missing");
  }
}

}  // namespace

void validate(const SignalFlags& a) {
  check_flags(a.flags, a.count);
}

void validate(const AwaitFlags& a) {
  check_flags(a.flags, a.count);
  TROUPE_CHECK(a.limit_ns >= 0, "the limit is", a.limit_ns, "ns");
  TROUPE_CHECK(a.missing != nullptr, "missing");
}

void signal_flags_ref(const SignalFlags& a) {
  validate(a);
  const uint32_t value = a.value_at != nullptr ? *a.value_at : a.value;
  for (int64_t i = 0; i < a.count; ++i) {
    uint32_t* const flag = a.flags[static_cast<size_t>(i)];
    if (a.marked) flag[1] = a.mark;
    *flag = value;
  }
}

void await_flags_ref(const AwaitFlags& a) {
  validate(a);
  const uint32_t want = a.want_at != nullptr ? *a.want_at : a.want;
  const auto give_up = [&a](int64_t missing) {
    if (*a.missing < 0) *a.missing = static_cast<int32_t>(missing);
  };
  for (int64_t i = 0; i < a.count; ++i) {
    if (static_cast<int32_t>(*a.flags[static_cast<size_t>(i)] - want) >= 0) continue;
    return give_up(i);
  }
  for (int64_t i = 0; a.marked && i < a.count; ++i) {
    if (a.flags[static_cast<size_t>(i)][1] != a.mark) return give_up(kMostPeers + i);
  }
  if (a.advance != nullptr) *a.advance = want + 1;
}

}  // namespace troupe
