#include "troupe/train/run/data_warnings.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <mutex>

#include "troupe/distributed/group/rank_list.h"
#include "troupe/distributed/world/key_value_store.h"

namespace troupe {

// May outlive the gathering: files that are open have a log with it.
class DataWarnings::Lines : public LogSink {
 public:
  Lines(Log to, bool keeps) : to_(std::move(to)), keeps_(keeps) {}

  void write(Level level, std::string_view line) override {
    const std::lock_guard lock(mutex_);
    if (level == Level::kWarning && !given_) lines_.emplace_back(line);
    if (level != Level::kWarning || !keeps_) give(level, line);
  }

  // Ends keeping. Returns what was said, or with `gives`, says what was kept.
  std::vector<std::string> end(bool gives) {
    const std::lock_guard lock(mutex_);
    if (gives && keeps_) {
      for (const std::string& line : lines_) give(Level::kWarning, line);
    }
    keeps_ = false;
    given_ = true;
    return std::exchange(lines_, {});
  }

 private:
  void give(Level level, std::string_view line) const {
    if (level == Level::kDebug) to_.debug(line);
    if (level == Level::kInfo) to_.info(line);
    if (level == Level::kWarning) to_.warning(line);
    if (level == Level::kError) to_.error(line);
  }

  const Log to_;
  std::mutex mutex_;
  std::vector<std::string> lines_;
  bool keeps_, given_ = false;
};

DataWarnings::DataWarnings(const ParallelState& parallel, Log log)
    : parallel_(parallel),
      log_(std::move(log)),
      lines_(std::make_shared<Lines>(log_, parallel.world().rank() != 0)) {}

DataWarnings::~DataWarnings() {
  lines_->end(/*gives=*/true);
}

Log DataWarnings::log() const {
  return Log({lines_});
}

void DataWarnings::gather() {
  if (parallel_.alone()) return void(lines_->end(/*gives=*/false));
  const std::vector<std::string> own = lines_->end(/*gives=*/false);
  std::vector<std::vector<std::string>> of_rank;
  for (const std::string& text : parallel_.all_gather_texts("data warnings", joined(own),
                                                            ParallelState::Patience::kWhileAlive)) {
    of_rank.push_back(parted(text));
  }
  if (parallel_.world().rank() != 0) return;
  for (const std::string& line : other_ranks_lines(of_rank)) log_.warning(line);
}

std::vector<std::string> other_ranks_lines(const std::vector<std::vector<std::string>>& of_rank) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> found;
  for (int64_t rank = 1; rank < std::ssize(of_rank); ++rank) {
    for (const std::string& line : of_rank[static_cast<size_t>(rank)]) {
      if (std::ranges::count(of_rank.front(), line) > 0) continue;
      const auto at = std::ranges::find(found, line, [](const auto& pair) { return pair.first; });
      if (at == found.end()) {
        found.emplace_back(line, std::vector{rank});
      } else if (at->second.back() != rank) {
        at->second.push_back(rank);
      }
    }
  }
  std::vector<std::string> out;
  for (const auto& [line, ranks] : found) {
    out.push_back(line + (ranks.size() == 1 ? " (rank " : " (ranks ") + rank_list(ranks) + ')');
  }
  return out;
}

}  // namespace troupe
