#include "troupe/testing/torch/ranks.h"

#include <c10/core/impl/VirtualGuardImpl.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/distributed/world/store_server.h"
#include "troupe/distributed/world/threads.h"
#include "troupe/ops/support/cuda_plugin.h"
#include "troupe/testing/temporary_folder.h"

namespace troupe::testing {
namespace {

std::string this_test() {
  const auto* const info = ::testing::UnitTest::GetInstance()->current_test_info();
  return std::string(info->test_suite_name()) + '.' + info->name();
}

// How often this test has come to in_ranks.
int next_call() {
  static std::map<std::string, int> calls;
  return calls[this_test()]++;
}

const char* variable(const char* name) {
  return std::getenv(name);
}

// The rank's GPU, made the current one, and the number of them.
std::pair<c10::Device, int> gpu_of(int rank) {
  TROUPE_CHECK(has_cuda(), "-", why_no_cuda());
  const c10::impl::VirtualGuardImpl gpus(c10::kCUDA);
  const int count = gpus.deviceCount();
  const c10::Device own(c10::kCUDA, static_cast<c10::DeviceIndex>(rank % count));
  gpus.setDevice(own);
  return {own, count};
}

// Runs the body as one of the ranks, if this process is one and this is its call.
void run_as_rank(int call, const std::function<void(World&)>& body, bool on_gpus,
                 WorldOptions how) {
  std::signal(SIGPIPE, SIG_IGN);  // of Gloo's write to a rank that is lost, as in train and Python
  if (call != std::atoi(variable("TROUPE_TEST_CALL"))) return;
  const LauncherEnvironment place{.rank = std::atoi(variable("RANK")),
                                  .size = std::atoi(variable("WORLD_SIZE")),
                                  .local_rank = std::atoi(variable("RANK")),
                                  .local_size = std::atoi(variable("WORLD_SIZE")),
                                  .port = std::atoi(variable("MASTER_PORT")),
                                  .launcher_has_store = true};
  const auto [device, gpus] =
      on_gpus ? gpu_of(static_cast<int>(place.rank)) : std::pair(c10::Device(c10::kCPU), 0);
  how.start_timeout = std::chrono::seconds(30);
  how.hang_timeout = std::chrono::seconds(std::atoi(variable("TROUPE_TEST_SECONDS"))) / 2;
  how.staged = on_gpus && gpus < place.size;
  {
    World world(place, device, how);
    try {
      body(world);
    } catch (const std::exception& e) {
      ADD_FAILURE() << e.what();
    }
    // Nobody leaves while another still talks to it.
    if (!::testing::Test::HasFailure()) world.all_gather_texts("end of test", "");
  }
  std::fflush(nullptr);
  std::_Exit(::testing::Test::HasFailure() ? 1 : 0);
}

std::string text_of(const std::string& path) {
  std::ifstream in(path);
  std::stringstream out;
  out << in.rdbuf();
  return out.str();
}

struct Process {
  pid_t pid = 0;
  std::string output;
  bool ended = false;
  int end = 0;  // exit code, or minus the signal
};

Process start(int rank, int ranks, int call, int port, const std::string& folder, int seconds) {
  Process out{.output = folder + "/rank" + std::to_string(rank) + ".txt"};
  std::vector<std::string> settings;
  for (char** e = environ; *e != nullptr; ++e) settings.emplace_back(*e);
  settings.push_back("TROUPE_TEST_CALL=" + std::to_string(call));
  settings.push_back("RANK=" + std::to_string(rank));
  settings.push_back("WORLD_SIZE=" + std::to_string(ranks));
  settings.push_back("MASTER_PORT=" + std::to_string(port));
  settings.push_back("TROUPE_TEST_SECONDS=" + std::to_string(seconds));
  settings.push_back("OMP_NUM_THREADS=1");
  std::vector<std::string> arguments{"/proc/self/exe", "--gtest_filter=" + this_test()};
  const auto pointers = [](std::vector<std::string>& texts) {
    std::vector<char*> all;
    for (std::string& text : texts) all.push_back(text.data());
    all.push_back(nullptr);
    return all;
  };
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 1, out.output.c_str(), O_WRONLY | O_CREAT, 0600);
  posix_spawn_file_actions_adddup2(&actions, 1, 2);
  const int failed = posix_spawn(&out.pid, "/proc/self/exe", &actions, nullptr,
                                 pointers(arguments).data(), pointers(settings).data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed != 0) throw std::runtime_error("cannot start a rank");
  return out;
}

void run_ranks(const std::vector<int>& ends, const std::function<void(World&)>& body, int seconds,
               bool on_gpus, const WorldOptions& how = {}) {
  if (on_gpus && !has_cuda()) GTEST_SKIP() << why_no_cuda();
  const int call = next_call();
  if (variable("TROUPE_TEST_CALL") != nullptr) return run_as_rank(call, body, on_gpus, how);
  const int ranks = static_cast<int>(ends.size());
  const TemporaryFolder folder;
  const StoreServer store;
  std::vector<Process> all;
  for (int r = 0; r < ranks; ++r)
    all.push_back(start(r, ranks, call, store.port(), folder.path(), seconds));
  const auto last = std::chrono::steady_clock::now() + std::chrono::seconds(seconds);
  size_t running = all.size();
  while (running > 0 && std::chrono::steady_clock::now() < last) {
    for (Process& p : all) {
      int status = 0;
      if (p.ended || waitpid(p.pid, &status, WNOHANG) != p.pid) continue;
      p.ended = true;
      p.end = WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
      --running;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  for (size_t r = 0; r < all.size(); ++r) {
    Process& p = all[r];
    if (!p.ended) {
      kill(p.pid, SIGKILL);
      waitpid(p.pid, nullptr, 0);
      ADD_FAILURE() << "rank " << r << " was still running after " << seconds << " s\n"
                    << text_of(p.output);
    } else if (p.end != ends[r]) {
      ADD_FAILURE() << "rank " << r << " ended with " << p.end << ", not " << ends[r] << '\n'
                    << text_of(p.output);
    }
  }
}

}  // namespace

void in_ranks(int ranks, const std::function<void(World&)>& body, int seconds) {
  in_ranks_that_end(std::vector<int>(static_cast<size_t>(ranks), 0), body, seconds);
}

void in_ranks(int ranks, const WorldOptions& how, const std::function<void(World&)>& body,
              int seconds) {
  run_ranks(std::vector<int>(static_cast<size_t>(ranks), 0), body, seconds, /*on_gpus=*/false, how);
}

void in_ranks_that_end(const std::vector<int>& ends, const std::function<void(World&)>& body,
                       int seconds) {
  run_ranks(ends, body, seconds, /*on_gpus=*/false);
}

void in_ranks_on_gpus(const std::vector<int>& ends, const std::function<void(World&)>& body,
                      int seconds) {
  run_ranks(ends, body, seconds, /*on_gpus=*/true);
}

void in_threads(int ranks, const std::function<void(World&)>& body, int seconds) {
  in_threads(ranks, WorldOptions{}, body, seconds);
}

void in_threads(int ranks, WorldOptions how, const std::function<void(World&)>& body, int seconds) {
  const auto shared = std::make_shared<Threads>();
  how.hang_timeout = std::chrono::seconds(seconds);
  how.threads = shared;
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        World world({.rank = r, .size = ranks, .local_rank = r, .local_size = ranks}, c10::kCPU,
                    how);
        body(world);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << r << ": " << e.what();
        shared->abandon("rank " + std::to_string(r) + " ended: " + e.what());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

}  // namespace troupe::testing
