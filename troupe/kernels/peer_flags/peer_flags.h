// Flags between ranks that reach each other's memory: 32-bit words, each with one writer, that say
// how many transfers a rank has finished. They only grow, and may wrap around.
//
//   signal  flag[i] = value for i < count, after everything this rank wrote before (release)
//   await   returns when int32(flag[i] - want) >= 0 for all i < count (acquire), or when *stop is
//           not 0, or after limit_ns. Where it gives up, *missing becomes the lowest i that has not
//           come; else *missing stays as it is.
//
// Where *missing is not below 0, an earlier wait has given up: this one looks once and writes none.
//
// Numbers may be counted where the flags are, so that a captured graph can be replayed: `value_at`
// and `want_at` stand for value and want when the call runs, and where all have come *advance
// becomes want + 1. One rank's calls alone use these words, in the order of one stream.
//
// `marked`: behind each flag lies a word that says what has come. signal writes `mark` there before
// the flag; await compares it with its own where all have come, and where one is another *missing
// becomes kMostPeers + i of the lowest such i. Without it that word is not touched.
//
// A wait is bounded: it never hangs, and what follows it must look at `missing`. On the CPU a
// waiting thread sleeps in the kernel (futex, also between processes) and `signal` wakes it. On a
// GPU both are one small block; the flags may be in another GPU's memory.
#pragma once

#include <array>
#include <cstdint>

#include "troupe/core/device/cuda_stream.h"
#include "troupe/core/device/pool.h"

namespace troupe {

inline constexpr int64_t kMostPeers = 64;  // ranks of one machine

struct SignalFlags {
  int64_t count = 0;
  std::array<uint32_t*, kMostPeers> flags = {};  // [count]; with `marked` of two words each
  uint32_t value = 0;
  const uint32_t* value_at = nullptr;  // null: `value`
  bool marked = false;
  uint32_t mark = 0;
};

struct AwaitFlags {
  int64_t count = 0;
  std::array<const uint32_t*, kMostPeers> flags = {};  // [count]; with `marked` of two words each
  uint32_t want = 0;
  const uint32_t* want_at = nullptr;  // null: `want`
  uint32_t* advance = nullptr;        // null: nothing is counted; may be want_at
  bool marked = false;
  uint32_t mark = 0;
  int64_t limit_ns = 0;
  const uint32_t* stop = nullptr;  // null: nothing stops it early
  int32_t* missing = nullptr;      // [1]  -1; out, written only where it gives up or marks differ
};

void validate(const SignalFlags& args);
void validate(const AwaitFlags& args);

void signal_flags_ref(const SignalFlags& args);
void signal_flags_cpu(const SignalFlags& args, const Pool& pool);
void signal_flags_cuda(const SignalFlags& args, cudaStream_t stream);

void await_flags_ref(const AwaitFlags& args);  // looks once
void await_flags_cpu(const AwaitFlags& args, const Pool& pool);
void await_flags_cuda(const AwaitFlags& args, cudaStream_t stream);

}  // namespace troupe
