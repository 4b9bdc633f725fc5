#include "troupe/distributed/group/thread_backend.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <mutex>

#include "troupe/core/check.h"
#include "troupe/distributed/group/stage_channels.h"
#include "troupe/distributed/world/threads.h"
#include "troupe/distributed/world/world.h"
#include "troupe/testing/torch/ranks.h"

namespace troupe {
namespace {

using testing::in_threads;

TEST(ThreadBackend, DoesWhatAGroupOverANetworkDoes) {
  in_threads(4, [](World& world) {
    const auto all = world.all();
    const int64_t r = world.rank();
    const at::Tensor one = at::full({3}, static_cast<double>(r)), other = at::full({2}, 10.0 * r);
    all->all_reduce({one, other}).wait();
    EXPECT_TRUE(at::equal(one, at::full({3}, 6.0, one.options())));
    EXPECT_EQ(other[1].item<double>(), 60);
    const at::Tensor parts = at::arange(8, at::kFloat) * (r + 1), own = at::empty({2}, at::kFloat);
    const at::Tensor whole = at::empty({8}, at::kFloat);
    Pending shards = all->reduce_scatter({own}, {parts});
    const at::Tensor place = whole.narrow(0, 2 * r, 2);
    place.fill_(static_cast<double>(r));
    Pending gathered = all->all_gather({whole}, {place});  // two under way at a time
    shards.wait();
    gathered.wait();
    EXPECT_TRUE(at::equal(own, at::arange(8, at::kFloat).narrow(0, 2 * r, 2) * 10));
    for (int64_t i = 0; i < 8; ++i) {
      EXPECT_EQ(whole[i].item<double>(), static_cast<double>(i / 2));
    }
    const at::Tensor copied = at::full({2}, static_cast<double>(r));
    all->broadcast(copied, 2).wait();
    EXPECT_EQ(copied[1].item<double>(), 2);
    all->barrier();
    EXPECT_EQ(world.all_gather_texts("x", std::to_string(r)),
              (std::vector<std::string>{"0", "1", "2", "3"}));
  });
}

TEST(ThreadBackend, ExchangesUnevenRowsInGroupsOfTheirOwn) {
  in_threads(4, [](World& world) {
    const int64_t r = world.rank(), half = r / 2;
    const auto pair = world.group({2 * half, 2 * half + 1}, "rows");
    // Rank i of the pair sends i + 1 rows to its neighbor, none to itself.
    const int64_t i = pair->rank(), sent = i + 1, came = 2 - i;
    const at::Tensor in = at::full({sent, 2}, static_cast<double>(r)), out = at::empty({came, 2});
    std::vector<int64_t> from(2, 0), to(2, 0);
    from[static_cast<size_t>(1 - i)] = came;
    to[static_cast<size_t>(1 - i)] = sent;
    pair->all_to_all(out, in, from, to).wait();
    EXPECT_TRUE(out.eq(static_cast<double>(2 * half + 1 - i)).all().item<bool>());
  });
}

// The error of each of two ranks whose calls do not match.
std::vector<std::string> errors_of(const std::function<void(World&)>& body) {
  const auto shared = std::make_shared<Threads>();
  std::vector<std::string> out(2);
  std::vector<std::thread> threads;
  for (int64_t r = 0; r < 2; ++r) {
    threads.emplace_back([&, r] {
      World world({.rank = r, .size = 2, .local_size = 2}, c10::kCPU,
                  {.hang_timeout = std::chrono::milliseconds(200), .threads = shared});
      try {
        body(world);
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), Code::kRankLost);
        out[static_cast<size_t>(r)] = e.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return out;
}

TEST(ThreadBackend, CallsThatDifferFailOnAllRanksWithBoth) {
  const auto said = errors_of([](World& world) {
    const at::Tensor x = at::full({world.rank() + 1}, 1.0);
    world.all()->all_reduce({x}).wait();
  });
  for (const std::string& text : said) {
    EXPECT_NE(text.find("sum Float [1]"), std::string::npos) << text;
    EXPECT_NE(text.find("sum Float [2]"), std::string::npos) << text;
  }
}

TEST(ThreadBackend, ARankThatDoesNotComeIsNamedWithItsLastCall) {
  const auto said = errors_of([](World& world) {
    world.all()->barrier();
    if (world.rank() == 0) world.all()->all_reduce({at::full({4}, 1.0)}).wait();
  });
  EXPECT_EQ(said[1], "");
  EXPECT_NE(said[0].find("rank 1 did not come to sum Float [4]; its last call of this group: "
                         "barrier, number 0"),
            std::string::npos)
      << said[0];
}

TEST(ThreadBackend, ARankThatEndsEndsTheOthers) {
  const auto shared = std::make_shared<Threads>();
  World world({.rank = 0, .size = 2, .local_size = 2}, c10::kCPU, {.threads = shared});
  std::thread other([&] { shared->abandon("rank 1 ended: no data"); });
  try {
    world.all()->barrier();
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("rank 1 ended: no data"), std::string::npos) << e.what();
  }
  other.join();
}

TEST(ThreadBackend, PassesMessagesInOrderBothWays) {
  in_threads(3, [](World& world) {
    const auto pair_of = [&](int64_t low) { return world.group({low, low + 1}, "messages"); };
    // Rank 0 sends two before anybody receives; the middle one passes them on, and sends back.
    const at::Tensor first = at::full({2, 3}, 1.0), second = at::full({4}, 2.0);
    if (world.rank() == 0) {
      Pending a = pair_of(0)->send(first), b = pair_of(0)->send(second);
      const at::Tensor back = at::zeros({4});
      pair_of(0)->recv(back).wait();
      a.wait();
      b.wait();
      EXPECT_EQ(back[3].item<double>(), 3);
    } else if (world.rank() == 1) {
      const at::Tensor x = at::zeros({2, 3}), y = at::zeros({4});
      Pending a = pair_of(0)->recv(x), b = pair_of(0)->recv(y);
      b.wait();
      a.wait();
      pair_of(1)->send(x).wait();
      pair_of(0)->send(y + 1).wait();
    } else {
      const at::Tensor x = at::zeros({2, 3});
      pair_of(1)->recv(x).wait();
      EXPECT_EQ(x[1][2].item<double>(), 1);
    }
  });
}

TEST(ThreadBackend, RefusesAMessageOfAnotherSizeOrType) {
  in_threads(2, [](World& world) {
    const auto pair = world.all();
    const at::Tensor x = at::zeros({world.rank() == 0 ? 4 : 5});
    try {
      (world.rank() == 0 ? pair->send(x) : pair->recv(x)).wait();
      ADD_FAILURE() << "4 numbers are no 5";
    } catch (const Error& error) {
      const std::string what = error.what();
      EXPECT_NE(what.find("rank 0 calls message Float [4]"), std::string::npos) << what;
      EXPECT_NE(what.find("rank 1 calls message Float [5]"), std::string::npos) << what;
    }
    EXPECT_THROW(pair->send(at::empty({0})), Error);
  });
}

TEST(ThreadBackend, ChannelsKeepDirectionsAndKindsApart) {
  in_threads(3, [](World& world) {
    const int own = static_cast<int>(world.rank());
    // A loop of three ranks, two stages each.
    StageChannels channels({.ranks = {0, 1, 2}, .own = own, .links = {{0, 1}, {1, 2}, {2, 0}}},
                           [&](const std::vector<int64_t>& ranks, const std::string& name) {
                             return world.group(ranks, name);
                           });
    const int next = (own + 1) % 3, before = (own + 2) % 3;
    const at::Tensor h = at::zeros({2}), gradient = at::zeros({2});
    // Gradients are awaited first, activations sent first: neither waits for the other.
    Pending g = channels.recv(next, StageMessage::kGradient, gradient);
    channels.send(next, StageMessage::kActivation, at::full({2}, 10.0 + own));
    channels.send(before, StageMessage::kGradient, at::full({2}, 20.0 + own));
    channels.recv(before, StageMessage::kActivation, h).wait();
    g.wait();
    channels.finish();
    EXPECT_EQ(h[0].item<double>(), 10 + before);
    EXPECT_EQ(gradient[1].item<double>(), 20 + next);
    EXPECT_THROW(channels.send(own, StageMessage::kActivation, h), Error);
    // The third message waits for the first, which comes only when it is taken.
    if (own == 0) {
      for (int i = 0; i < 3; ++i)
        channels.send(1, StageMessage::kActivation, at::full({2}, 1.0 * i));
    } else if (own == 1) {
      for (int i = 0; i < 3; ++i) {
        channels.recv(0, StageMessage::kActivation, h).wait();
        EXPECT_EQ(h[0].item<double>(), i);
      }
    }
    channels.finish();
  });
}

// What is computed for the first time is sent by the groups that do not occupy the device.
TEST(ThreadBackend, PL14_ChannelsTakeTheirFirstGroupsForWhatIsFirst) {
  in_threads(2, [](World& world) {
    const int own = static_cast<int>(world.rank());
    std::vector<std::shared_ptr<ProcessGroup>> usual, first;
    const auto make = [&world](auto& all, const std::string& prefix) {
      return [&, prefix](const std::vector<int64_t>& ranks, const std::string& name) {
        return all.emplace_back(world.group(ranks, prefix + name));
      };
    };
    StageChannels channels({.ranks = {0, 1}, .own = own, .links = {{0, 1}}}, make(usual, ""),
                           make(first, "first "));
    ASSERT_EQ(first.size(), 2);  // activations, gradients
    for (const bool is_first : {true, false, true}) {
      channels.begin(is_first);
      const at::Tensor x = at::full({1}, 7.0);
      if (own == 0) channels.send(1, StageMessage::kActivation, x);
      // The other end looks at the group that must have the message.
      if (own == 1) (is_first ? first : usual)[0]->recv(x.zero_()).wait();
      channels.finish();
      EXPECT_EQ(x.item<double>(), 7);
    }
  });
}

}  // namespace
}  // namespace troupe
