// What a run of N ranks asks of its store, its folder and its machine besides training: N ranks as
// threads of this process, with the program's own rendezvous, watch, gathers, saves and loads, and a
// model's own tensors, each of a few bytes (simulated_world.h).
//
//   control_plane --model deepseek-v3 --ranks 3072 --save --load --hour --lose 17
//   control_plane --model dbrx --curve 8,64,256,1024,3072 --save --load --hour --lose 5
//
// Prints a table, a row a phase, and one of who asked whom for what, both Markdown; a row that this
// machine cannot hold is computed from those of fewer ranks, and says so. Ends with 1 where a rank
// failed, was not named after it was lost, or left something behind.
#include <malloc.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "bench/control_plane/options.h"
#include "bench/control_plane/purposes.h"
#include "bench/control_plane/resources.h"
#include "bench/control_plane/row.h"
#include "bench/control_plane/simulated_world.h"
#include "bench/control_plane/start_probe.h"
#include "bench/control_plane/state_boxes.h"
#include "troupe/core/check.h"
#include "troupe/core/text/readable.h"

namespace troupe::control_plane {
namespace {

constexpr std::chrono::milliseconds kWatched{5'000};
constexpr int64_t kSavesCounted = 2, kMostWorlds = 96;

// The rows so far. Ends the process before the machine has no memory left, with what there is.
class Table {
 public:
  // `temporary`: a folder that does not outlive the process; empty: none.
  Table(int64_t most_memory, std::string temporary)
      : most_(most_memory), temporary_(std::move(temporary)), guard_([this] { watch(); }) {}
  ~Table() { stop_ = true; }

  void begins(const std::string& phase, int64_t ranks) {
    const std::lock_guard lock(mutex_);
    now_ = std::to_string(ranks) + " ranks, " + phase;
    std::fprintf(stderr, "%s\n", now_.c_str());
  }
  void add(const Row& row) {
    const std::lock_guard lock(mutex_);
    rows_.push_back(row);
  }
  std::vector<Row> measured(const std::string& phase) const {
    std::vector<Row> out;
    for (const Row& row : rows_) {
      if (row.phase == phase && row.computed.empty() && row.fault.empty()) out.push_back(row);
    }
    return out;
  }
  bool has_fault() const {
    for (const Row& row : rows_) {
      if (!row.fault.empty()) return true;
    }
    return false;
  }
  std::string text() const { return table_of(rows_); }
  std::string purposes(int64_t ranks) const { return purpose_table(rows_, ranks); }

 private:
  void watch() {
    while (!stop_) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      const int64_t now = memory_now(::getpid());
      if (now <= most_) continue;
      const std::lock_guard lock(mutex_);
      std::printf("%s%s: not done: it takes more than %s (--memory)\n", table_of(rows_).c_str(),
                  now_.c_str(), readable_bytes(most_).c_str());
      std::fflush(stdout);
      std::error_code ignored;
      if (!temporary_.empty()) std::filesystem::remove_all(temporary_, ignored);
      ::_exit(3);
    }
  }

  const int64_t most_;
  const std::string temporary_;
  std::atomic<bool> stop_ = false;
  mutable std::mutex mutex_;
  std::vector<Row> rows_;
  std::string now_ = "nothing";
  std::jthread guard_;  // last: it uses the others
};

class Curve {
 public:
  Curve(const Options& options, const std::string& folder, int64_t memory)
      : options_(options),
        catalog_(catalog_of(model_named(options.model))),
        folder_(folder),
        memory_(memory),
        table_(memory, options.dir.empty() ? folder : std::string()) {}

  // 0, or 1 where a rank failed or was not named.
  int run() {
    std::printf("%s: %lld tensors of a checkpoint, at most %s of memory, %lld descriptors\n",
                options_.model.c_str(), static_cast<long long>(catalog_.tensors()),
                readable_bytes(memory_).c_str(), static_cast<long long>(raise_descriptors()));
    for (const int64_t ranks : options_.ranks) run_of(ranks);
    std::printf("%s%s\n%s", table_.text().c_str(), said_.c_str(),
                table_.purposes(options_.ranks.back()).c_str());
    return table_.has_fault() || bad_ ? 1 : 0;
  }

 private:
  SimulatedRun of(int64_t ranks) const {
    const MeshShape& asked = options_.mesh;
    const bool chosen =
        asked.expert * asked.pipeline * asked.tensor * asked.context > 1 || asked.shard > 0;
    SimulatedRun out;
    out.ranks = ranks;
    out.mesh = chosen ? asked : shape_for(catalog_, ranks);
    out.folder = folder_ + '/' + std::to_string(ranks);
    out.first_serves = options_.first_serves;
    out.faults = options_.faults;
    out.beat = options_.beat;
    return out;
  }

  // Whether a phase is run: its row is computed where it would take too much, or lacks what comes
  // before it.
  bool fits(const std::string& phase, int64_t ranks, bool possible = true) {
    const std::vector<Row> before = table_.measured(phase);
    if (!before.empty() && before.back().ranks < ranks) {
      const Row row = computed_row(before, ranks);
      if (!possible || row.memory > memory_ || row.seconds > options_.seconds) {
        table_.add(row);
        return false;
      }
    }
    if (!possible) return false;
    ::malloc_trim(0);  // or the peak would be an earlier run's
    table_.begins(phase, ranks);
    return true;
  }

  void add(Row row, const std::string& phase) {
    row.phase = phase;
    table_.add(row);
  }

  void run_of(int64_t ranks) {
    const SimulatedRun run = of(ranks);
    if (options_.connections) connect(run);
    bool saved = !options_.save;
    const int64_t descriptors = open_descriptors();
    if (fits("start", ranks)) {
      SimulatedWorld world(catalog_, run);
      const Row start = world.start();
      add(start, "start");
      if (!start.fault.empty()) return;
      if (options_.save && fits("save", ranks)) {
        const Row row = world.save(1);
        add(row, "save");
        saved = row.fault.empty();
      }
      if (options_.hour && fits("hour", ranks)) add(world.hour(2, kSavesCounted, kWatched), "hour");
      if (options_.loses() && fits("loss", ranks)) lose(world);
    }
    if (const std::string left = left_behind(descriptors); !left.empty()) {
      said_ += std::to_string(ranks) + " ranks left behind: " + left + '\n';
      bad_ = true;
    }
    if (!options_.load) return;
    load(run, "load", saved);
    SimulatedRun other = run;
    other.ranks = options_.load_ranks > 0 ? options_.load_ranks : ranks / 2;
    if (other.ranks < 2) return;
    other.mesh = shape_for(catalog_, other.ranks);
    load(other, "load, other layout", saved);
  }

  void load(const SimulatedRun& run, const std::string& phase, bool saved) {
    if (!fits(phase, run.ranks, saved)) return;
    SimulatedWorld world(catalog_, run);
    Row row = world.start();
    if (row.fault.empty()) row = world.load();
    add(row, phase);
  }

  void lose(SimulatedWorld& world) {
    const SimulatedWorld::Ending ending = world.lose(options_.lose, options_.lose_store);
    add(ending.row, "loss");
    if (!ending.message.empty()) said_ += "one of them says: " + ending.message + '\n';
    // With the store all that is known is lost, but where it was rank 0's.
    const bool first = options_.first_serves && options_.loses_first();
    const int64_t right = options_.lose_store && !first ? ending.unknown : ending.named;
    bad_ |= right != ending.survivors;
  }

  void connect(const SimulatedRun& run) {
    const int64_t worlds = std::min(run.ranks, kMostWorlds);
    table_.begins("connections of " + std::to_string(worlds) + " Worlds", run.ranks);
    const Connections all =
        connections_of(worlds, worlds == run.ranks ? run.mesh : shape_for(catalog_, worlds));
    const GroupKey key = group_key_of(run.ranks, run.mesh);
    said_ += std::to_string(worlds) + " whole Worlds: " + std::to_string(all.descriptors / worlds) +
             " descriptors a rank, " + std::to_string(all.keys) + " keys, the longest " +
             std::to_string(all.longest_key) + " bytes\n" + std::to_string(run.ranks) +
             " ranks: the longest list is of " + key.kind + ", " + std::to_string(key.ranks) +
             " ranks; the longest key of the store is " + std::to_string(key.longest_key) +
             " bytes (" + key.said + ")\n";
  }

  const Options& options_;
  const Catalog catalog_;
  const std::string folder_;
  const int64_t memory_;
  Table table_;
  std::string said_;
  bool bad_ = false;
};

int run(const std::vector<std::string>& words) {
  const Options options = options_from(words);
  raise_descriptors();
  set_small_stacks();
  const int64_t memory = options.memory > 0 ? options.memory : memory_available() / 10 * 9;
  std::string folder = options.dir;
  if (folder.empty()) {
    folder = (std::filesystem::temp_directory_path() / "control_plane.XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) fail(Code::kFileFailed, folder, "cannot be made");
  }
  std::filesystem::create_directories(folder);
  const int code = Curve(options, folder, memory).run();
  if (options.dir.empty()) std::filesystem::remove_all(folder);
  return code;
}

}  // namespace
}  // namespace troupe::control_plane

int main(int argc, char** argv) {
  try {
    return troupe::control_plane::run({argv + 1, argv + argc});
  } catch (const std::exception& e) {
    std::fprintf(stderr, "control_plane: %s\n", e.what());
    return 1;
  }
}
