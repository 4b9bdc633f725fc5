#include "troupe/checkpoint/state/save_step.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <sstream>
#include <system_error>

#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/folder/run_folder.h"
#include "troupe/core/check.h"
#include "troupe/core/config/json.h"

namespace troupe {
namespace {

struct RankShards {
  std::vector<ShardInfo> shards;
  static void visit(auto& r, auto&& f) { f("shards", r.shards); }
};

class OpenStep {
 public:
  OpenStep(const SaveTools& tools, const CheckpointConfig& config, const std::string& run_id,
           const SaveInfo& info)
      : tools_(tools), config_(config), run_id_(run_id), info_(info) {}

  // Rank 0 decides where to, or that there is nothing to do; returns why, or nothing.
  std::string begin() {
    const std::string said = run_on_all(tools_.group, [&] {
      if (!first()) return std::string();
      const std::string why = why_not();
      if (!why.empty()) return '-' + why;
      return '+' + make_staging_directory(tools_.fs, target());
    })[0];
    if (said.starts_with('-')) return said.substr(1);
    staging_ = said.substr(1);
    return {};
  }

  void write(const std::vector<ShardPiece>& pieces, SaveResult& result) {
    const ShardTask task{.folder = staging_,
                         .rank = tools_.group.rank,
                         .run = run_id_,
                         .step = info_.step,
                         .abandon = tools_.abandon};
    const std::vector<std::string> all = run_on_all(tools_.group, [&] {
      std::ostringstream out;
      try {
        const RankShards mine{write_shards(tools_.fs, tools_.faults, task, pieces)};
        for (const ShardInfo& shard : mine.shards) result.bytes += shard.bytes;
        write_json(out, mine);
      } catch (const Abandoned&) {
        return std::string("abandoned");
      }
      return out.str();
    });
    if (std::ranges::find(all, "abandoned") != all.end()) throw Abandoned();
    for (const std::string& text : all) {
      RankShards rank;
      read_config(parse_json(text, staging_), rank);
      shards_.insert(shards_.end(), rank.shards.begin(), rank.shards.end());
    }
  }

  bool bad() const {
    return info_.bad ||
           std::ranges::any_of(shards_, [](const ShardInfo& s) { return s.unsound > 0; });
  }

  void publish() {
    run_on_all(tools_.group, [&] {
      if (!first()) return std::string();
      const Manifest manifest = described();
      const CheckpointReader covers_each_tensor_once(staging_, manifest);
      tools_.faults.at("save.manifest", info_.step);
      NewFile file(tools_.fs, staging_ + '/' + kManifestName);
      file.write(to_json(manifest));
      file.finish();
      publish_step(tools_.fs, tools_.faults, config_.dir, staging_, manifest);
      // The others wait: in a save that is not of the background, their next step would for longer
      // than one operation between ranks may take.
      const auto note = [&](const std::string& line) { tools_.log.warning(line); };
      prune(tools_.fs, tools_.faults, config_, info_.step, note);
      for (const std::string& line : prune_set_aside(tools_.fs, config_, note)) {
        tools_.log.info(line);
      }
      return std::string();
    });
  }

  // Removes the staging folder after a fault. A fault in here is ignored: the first is reported.
  void clear() {
    if (!first() || staging_.empty()) return;
    std::error_code error;
    if (!std::filesystem::exists(staging_, error)) return;
    try {
      remove_tree(tools_.fs, staging_);
    } catch (const Error& e) {
      tools_.log.warning(e.what());
    }
  }

 private:
  bool first() const { return tools_.group.rank == 0; }
  Manifest described() const {
    Manifest out;
    out.run = run_id_;
    out.step = info_.step;
    out.bad = bad();
    out.score = info_.score;
    out.fingerprint = info_.fingerprint;
    out.base = info_.base;
    out.scalars_text = info_.scalars;
    out.shards = shards_;
    return out;
  }
  std::string target() const { return config_.dir + '/' + step_name(info_.step); }

  std::string why_not() {
    std::error_code error;
    if (!std::filesystem::is_directory(config_.dir, error)) {
      tools_.log.warning(config_.dir + " is gone; it is made anew");
      prepare_run_folder(tools_.fs, config_.dir);
    }
    if (info_.force) return {};
    try {
      const Manifest there = check_complete(target());
      if (there.bad || there.run != run_id_) return {};
    } catch (const Error&) {
      return {};  // Nothing, or nothing that could be read: it gives way.
    }
    return target() + " is there and complete";
  }

  const SaveTools& tools_;
  const CheckpointConfig& config_;
  const std::string& run_id_;
  const SaveInfo& info_;
  std::string staging_;
  std::vector<ShardInfo> shards_;
};

}  // namespace

void save_step(const SaveTools& tools, const CheckpointConfig& config, const std::string& run_id,
               const SaveInfo& info, const std::vector<ShardPiece>& pieces, SaveResult& result) {
  OpenStep step(tools, config, run_id, info);
  result.bytes = 0;
  result.folder = config.dir + '/' + step_name(info.step);
  result.skipped = step.begin();
  if (!result.skipped.empty()) return;
  try {
    step.write(pieces, result);
    result.bad = step.bad();
    step.publish();
  } catch (const Abandoned&) {
    step.clear();
    result.skipped = "it was abandoned";
  } catch (...) {
    step.clear();
    throw;
  }
}

}  // namespace troupe
