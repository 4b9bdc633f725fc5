// Keys of the store, whose server drops a connection that sends one above 8 KiB: none of a run is
// longer than kLongestKey bytes, however many ranks there are and whatever names they have.
//
//   a key = RUN + '/' + what this program names + what c10d's backends append
//   RUN   = "troupe/" JOB ATTEMPT '/' PROCESS OF RANK 0      at most kLongestJob of it are JOB
// store_key_test adds them up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

inline constexpr size_t kLongestKey = 250;
inline constexpr size_t kLongestJob = 40, kLongestChannel = 40, kLongestName = 64;

// The name, or where it has more than `most` (> 40) bytes its beginning and a hash of 128 bits.
std::string short_name(const std::string& name, size_t most);

// The prefix of a group's keys: "gloo/0-3070.1536-HASH/channel", the first rank, the last, how many
// there are, and a hash of 128 bits of their list. Lists that differ have keys that differ, but for
// one of about 2^-128 a pair; a process that meets both of such a pair refuses the second.
std::string group_key(const std::string& backend, const std::vector<int64_t>& ranks,
                      const std::string& channel);

}  // namespace troupe
