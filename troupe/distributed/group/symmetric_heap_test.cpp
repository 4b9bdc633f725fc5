#include "troupe/distributed/group/symmetric_heap.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/group/peer_memory.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using std::chrono::milliseconds;
using testing::in_ranks;
using testing::in_ranks_that_end;
using testing::in_threads;

const c10::Device kCpu = c10::kCPU;
constexpr int64_t kWords = 500, kBytes = kWords * int64_t{sizeof(int64_t)};

int64_t word(int64_t rank, int64_t round, int64_t i) {
  return 1'000'000 * rank + 1000 * round + i;
}

void write(Transfer& t, int64_t rank, int64_t round) {
  std::vector<int64_t> words(kWords);
  for (int64_t i = 0; i < kWords; ++i) words[static_cast<size_t>(i)] = word(rank, round, i);
  std::memcpy(t.own(), words.data(), kBytes);
  t.publish();
}

int64_t wrong(const Transfer& t, int64_t ranks, int64_t round) {
  int64_t out = 0;
  std::vector<int64_t> words(kWords);
  for (int64_t w = 0; w < ranks; ++w) {
    std::memcpy(words.data(), t.of(w), kBytes);
    for (int64_t i = 0; i < kWords; ++i) {
      out += words[static_cast<size_t>(i)] == word(w, round, i) ? 0 : 1;
    }
  }
  return out;
}

// Slots are used again and again; nothing may be overwritten before all have read it, whoever is
// slow.
void pass_rounds(World& world) {
  const auto group = world.all();
  SymmetricHeap& heap = group->heap(kCpu);
  heap.reserve(kBytes);
  for (int64_t round = 0; round < 60; ++round) {
    if (round % world.size() == world.rank()) std::this_thread::sleep_for(milliseconds(1));
    const auto t = heap.begin(Collective::kAllGather, kBytes);
    write(*t, world.rank(), round);
    if (round % world.size() == (world.rank() + 1) % world.size()) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    t->await();
    TROUPE_CHECK(wrong(*t, world.size(), round) == 0, "round", round);
  }
}

TEST(SymmetricHeap, SixtyTransfersBetweenThreads) {
  in_threads(4, pass_rounds);
}
TEST(SymmetricHeap, SixtyTransfersBetweenProcesses) {
  in_ranks(3, pass_rounds);
}

TEST(SymmetricHeap, AsManyTransfersAsThereAreSlotsMayBeOpenAndOneMoreIsAnError) {
  in_threads(2, [](World& world) {
    const auto group = world.all();
    SymmetricHeap& heap = group->heap(kCpu);
    heap.reserve(kBytes);
    std::vector<std::shared_ptr<Transfer>> open;
    for (int64_t i = 0; i < SymmetricHeap::kSlots; ++i) {
      open.push_back(heap.begin(Collective::kAllToAll, kBytes));
      write(*open.back(), world.rank(), i);
    }
    EXPECT_THROW(heap.begin(Collective::kAllToAll, kBytes), Error);
    for (int64_t i = SymmetricHeap::kSlots - 1; i >= 0; --i) {
      open[static_cast<size_t>(i)]->await();
      EXPECT_EQ(wrong(*open[static_cast<size_t>(i)], 2, i), 0);
    }
    open[0].reset();
    const auto next = heap.begin(Collective::kAllToAll, kBytes);
    write(*next, world.rank(), 9);
    next->await();
    EXPECT_EQ(wrong(*next, 2, 9), 0);
    EXPECT_EQ(wrong(*open[1], 2, 1), 0);  // still open, and untouched
  });
}

TEST(SymmetricHeap, GrowsWhileTransfersAreOpen) {
  in_threads(3, [](World& world) {
    const auto group = world.all();
    SymmetricHeap& heap = group->heap(kCpu);
    EXPECT_EQ(heap.bytes(), 0);
    EXPECT_THROW(heap.begin(Collective::kAllToAll, 1), Error);
    heap.reserve(kBytes);
    const int64_t before = heap.bytes();
    const auto old = heap.begin(Collective::kAllToAll, kBytes);
    write(*old, world.rank(), 1);
    heap.reserve(kBytes);
    EXPECT_EQ(heap.bytes(), before);
    EXPECT_THROW(heap.begin(Collective::kAllToAll, 100 * kBytes), Error);
    heap.reserve(100 * kBytes);
    EXPECT_GE(heap.bytes(), SymmetricHeap::kSlots * 100 * kBytes);
    const auto large = heap.begin(Collective::kAllToAll, 100 * kBytes);
    write(*large, world.rank(), 2);
    for (const auto& [t, round] : {std::pair{large, 2}, std::pair{old, 1}}) {
      t->await();
      EXPECT_EQ(wrong(*t, 3, round), 0);
    }
  });
}

TEST(SymmetricHeap, HostsTellEachOtherNumbers) {
  in_threads(4, [](World& world) {
    const auto group = world.all();
    SymmetricHeap& heap = group->heap(kCpu);
    for (int64_t round = 0; round < 50; ++round) {
      const auto all = heap.agree({world.rank(), round});
      ASSERT_EQ(all.size(), 4u);
      for (int64_t w = 0; w < 4; ++w) {
        EXPECT_EQ(all[static_cast<size_t>(w)][0], w);
        EXPECT_EQ(all[static_cast<size_t>(w)][1], round);
      }
    }
  });
}

TEST(SymmetricHeap, OfOneRankReachesItself) {
  ProcessGroup alone;
  SymmetricHeap& heap = alone.heap(kCpu);
  heap.reserve(kBytes);
  for (int64_t round = 0; round < 7; ++round) {
    const auto t = heap.begin(Collective::kAllToAll, kBytes);
    write(*t, 0, round);
    t->await();
    EXPECT_EQ(wrong(*t, 1, round), 0);
  }
}

// The text of the E6001 that `body` ends with.
std::string lost(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kRankLost) << e.what();
    return e.what();
  }
  ADD_FAILURE() << "nothing was thrown";
  return "";
}

TEST(SymmetricHeap, F_AProcessThatIsKilledEndsTheWaitOfTheOthers) {
  const auto begin = std::chrono::steady_clock::now();
  in_ranks_that_end({0, 0, -9}, [](World& world) {
    const auto group = world.all();
    SymmetricHeap& heap = group->heap(kCpu);
    heap.reserve(kBytes);
    {
      const auto t = heap.begin(Collective::kAllToAll, kBytes);
      write(*t, world.rank(), 0);
      t->await();
    }
    if (world.rank() == 2) ::raise(SIGKILL);
    const std::string text = lost([&] {
      const auto t = heap.begin(Collective::kAllToAll, kBytes);
      write(*t, world.rank(), 1);
      t->await();
    });
    EXPECT_NE(text.find("the process of rank 2 has ended"), std::string::npos) << text;
    EXPECT_NE(text.find("all_to_all 2 of ranks 0, 1, 2 over gloo"), std::string::npos) << text;
    std::fflush(nullptr);
    std::_Exit(::testing::Test::HasFailure() ? 1 : 0);  // a world with a rank less does not close
  });
  // Ranks' hang timeout is 30 s: nobody waited for it.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(30));
}

TEST(SymmetricHeap, F_ARankThatLeavesEndsTheWaitOfTheOthers) {
  in_threads(2, [](World& world) {
    const auto group = world.all();
    if (world.rank() == 1) {
      SymmetricHeap here(*group, kCpu);
      here.reserve(kBytes);
      return;  // and is gone
    }
    SymmetricHeap heap(*group, kCpu);
    heap.reserve(kBytes);
    const std::string text = lost([&] { heap.agree({}); });
    EXPECT_NE(text.find("rank 1 has left the group"), std::string::npos) << text;
  });
}

TEST(SymmetricHeap, F_RanksThatMeanOtherTransfersAllGetAnError) {
  struct Meant {
    Collective what;
    int64_t bytes;
    uint64_t contents;
  };
  for (const Meant& other :
       {Meant{Collective::kAllToAll, kBytes, 5}, Meant{Collective::kAllGather, kBytes - 8, 5},
        Meant{Collective::kAllGather, kBytes, 6}}) {
    in_threads(3, [&](World& world) {
      const auto group = world.all();
      SymmetricHeap& heap = group->heap(kCpu);
      heap.reserve(kBytes);
      const Meant mine = world.rank() == 1 ? other : Meant{Collective::kAllGather, kBytes, 5};
      const auto t = heap.begin(mine.what, mine.bytes, mine.contents);
      write(*t, world.rank(), 1);
      const std::string text = lost([&] { t->await(); });
      EXPECT_NE(text.find("has another transfer there"), std::string::npos) << text;
    });
  }
}

TEST(SymmetricHeap, F_ARankThatDoesNotComeEndsTheWaitAfterTheTimeout) {
  in_threads(
      2,
      [](World& world) {
        const auto group = world.all();
        SymmetricHeap heap(*group, kCpu);
        if (world.rank() == 1) return std::this_thread::sleep_for(milliseconds(2500));
        const std::string text = lost([&] { heap.agree({}); });
        EXPECT_NE(text.find("rank 1 did not come within 1 s"), std::string::npos) << text;
      },
      /*seconds=*/1);
}

TEST(PeerMemory, EveryRankSeesWhatAnotherWroteAndBeginsWithZeros) {
  in_ranks(3, [](World& world) {
    const auto group = world.all();
    const auto memory = host_peer_memory(*group, kCpu, 1000);
    for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(int{memory->of(world.rank())[i]}, 0);
    memory->of(world.rank())[999] = static_cast<uint8_t>(7 + world.rank());
    group->barrier();
    for (int64_t w = 0; w < 3; ++w) {
      EXPECT_EQ(int{memory->of(w)[999]}, 7 + w);
      EXPECT_EQ(memory->is_own(w), w == world.rank());
    }
    group->barrier();
  });
}

// Another number of bytes is another program's mistake: it must not be mapped.
TEST(PeerMemory, BlocksOfOtherSizesAreRefusedOnEveryRank) {
  in_threads(2, [](World& world) {
    const auto group = world.all();
    try {
      host_peer_memory(*group, kCpu, 1000 + 4096 * world.rank());
      ADD_FAILURE() << "nothing was thrown";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kBadValue);
      EXPECT_NE(std::string(e.what()).find("cannot map that of rank"), std::string::npos)
          << e.what();
    }
  });
}

}  // namespace
}  // namespace troupe
