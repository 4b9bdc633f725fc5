#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <set>

#include "troupe/checkpoint/files/base.h"
#include "troupe/checkpoint/files/names.h"
#include "troupe/checkpoint/files/shard_files.h"
#include "troupe/checkpoint/folder/waive_option.h"
#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/fill.h"
#include "troupe/checkpoint/state/load_plan.h"
#include "troupe/core/check.h"
#include "troupe/core/text/suggest.h"

namespace troupe {
namespace {

using Part = CheckpointState::Part;
using Clock = std::chrono::steady_clock;

bool is_float(Element e) {
  return e == Element::kF32 || e == Element::kBF16 || e == Element::kF16 || e == Element::kF64;
}

std::string shown(Element element, const Sizes& sizes) {
  return std::string(name_of(element)) + ' ' + to_text(sizes);
}

// "2 tensors model.*.history".
std::string counted(size_t tensors, const std::vector<std::string>& names) {
  return std::to_string(tensors) + (tensors == 1 ? " tensor " : " tensors ") +
         joined(std::vector<std::string_view>(names.begin(), names.end()));
}

// The names of all tensors, which no rank needs but to guess what a missing one is called there.
std::vector<std::string> all_names(const ShardFiles& files) {
  std::set<std::string> out;
  for (const ShardInfo& shard : files.manifest().shards) {
    for (const StoredTensor& stored : read_index(files.folder(), shard)) {
      out.insert(stored.tensor.name);
    }
  }
  return {out.begin(), out.end()};
}

// What does not fit, a line each; and what was let pass.
class Matching {
 public:
  Matching(const ShardFiles& files, const LoadPlan& plan, const LoadOptions& options,
           const std::vector<std::string>& may_lack)
      : files_(files), plan_(plan), options_(options), may_lack_(may_lack) {}

  // `guesses`: a name that is missing is compared with those that are there.
  void match(const CheckpointState& state, bool guesses) {
    size_t lacking = 0;
    std::vector<const TensorBox*> missing;
    for (size_t i = 0; i < state.parts().size(); ++i) {
      const Part& part = state.parts()[i];
      const TensorBox& t = part.tensor;
      const LoadPlan::Part& stored = plan_.parts[i];
      const bool fits = stored.stored && stored.global == t.box.global;
      if (!fits && matches_any(may_lack_, t.name)) {
        ++lacking;
      } else if (stored.stored) {
        compare(t, stored);
        (stored.based ? based : own).insert(t.name);
      } else if (matches_any(options_.waive_missing, t.name)) {
        notes.push_back("waived: " + t.name + " is not in the checkpoint and stays as it was");
      } else {
        missing.push_back(&t);
      }
    }
    add_missing(missing, guesses);
    if (lacking > 0) {
      notes.push_back(counted(lacking, may_lack_) + (lacking == 1 ? " begins" : " begin") +
                      " anew: the checkpoint lacks them, or has them in other sizes");
    }
    std::string line;  // one for all: a model has thousands
    for (const auto& [types, names_of_type] : casts_) {
      const size_t count = names_of_type.size();
      line += (line.empty() ? "cast: " : ", ") + std::to_string(count) +
              (count == 1 ? " tensor" : " tensors") + types;
    }
    if (!line.empty()) notes.push_back(line);
  }

  // Of all ranks; rank 0 knows them.
  void match_unused() {
    size_t left = 0;
    for (const LoadPlan::Unused& tensor : plan_.unused) {
      if (matches_any(may_lack_, tensor.name)) {
        ++left;
        continue;
      }
      const std::string line = tensor.name + ' ' + shown(tensor.element, tensor.global);
      matches_any(options_.waive_unused, tensor.name) ? notes.push_back("waived: unused " + line)
                                                      : faults.push_back("unused: " + line);
    }
    if (left > 0) {
      notes.push_back(counted(left, may_lack_) + " of the checkpoint " +
                      (left == 1 ? "is" : "are") + " not used here");
    }
  }

  std::vector<std::string> faults, notes;
  std::set<std::string> own, based;  // names of parts, by where they are

 private:
  void add_missing(const std::vector<const TensorBox*>& missing, bool guesses) {
    if (missing.empty()) return;
    constexpr size_t kMostGuesses = 100, kMostCompared = 500'000;  // names, with a missing one
    const std::vector<std::string> stored =
        guesses ? all_names(files_) : std::vector<std::string>();
    const std::vector<std::string_view> names(stored.begin(), stored.end());
    const size_t most = std::min(kMostGuesses, kMostCompared / std::max<size_t>(names.size(), 1));
    for (size_t i = 0; i < missing.size(); ++i) {
      const TensorBox& t = *missing[i];
      const std::string_view near = i < most ? nearest(t.name, names) : std::string_view();
      faults.push_back("missing: " + t.name + ' ' + shown(t.element, t.box.global) +
                       (near.empty() ? "" : "; there is " + std::string(near)));
    }
  }

  void compare(const TensorBox& t, const LoadPlan::Part& stored) {
    const bool shape_fits = stored.global == t.box.global;
    const bool casts = options_.cast && is_float(stored.element) && is_float(t.element);
    if (shape_fits && (stored.element == t.element || casts)) {
      if (stored.element != t.element) {
        casts_[" from " + std::string(name_of(stored.element)) + " to " +
               std::string(name_of(t.element))]
            .insert(t.name);
      }
      return;
    }
    std::string line = (shape_fits ? "retyped: " : "reshaped: ") + t.name + " is " +
                       shown(stored.element, stored.global) + " there and " +
                       shown(t.element, t.box.global) + " here";
    if (shape_fits) line += "; checkpoint.cast: true converts";
    if (!shape_fits && t.box.global.size() == 2 && stored.global.size() == 2 &&
        stored.global[1] == t.box.global[1] && t.name.find("embed") != std::string::npos) {
      line += "; only the vocabulary differs: another tokenizer?";
    }
    faults.push_back(line);
  }

  const ShardFiles& files_;
  const LoadPlan& plan_;
  const LoadOptions& options_;
  const std::vector<std::string>& may_lack_;
  std::map<std::string, std::set<std::string>> casts_;  // " from F32 to BF16": the names
};

// The first lines, in so many bytes: each rank gets the messages of all.
void fail_faults(const std::string& folder, std::vector<std::string> faults, size_t most_bytes) {
  if (faults.empty()) return;
  std::ranges::sort(faults);
  faults.erase(std::unique(faults.begin(), faults.end()), faults.end());
  std::string text = "differs from the model in " + std::to_string(faults.size()) + " tensors";
  size_t shown = 0;
  while (shown < faults.size() && (shown == 0 || text.size() < most_bytes)) {
    text += "\n  " + faults[shown++];
  }
  if (shown < faults.size()) {
    text += "\n  and " + std::to_string(faults.size() - shown) + " more";
  }
  fail(Code::kStateMismatch, folder,
       text +
           "\n  (weights alone: checkpoint.init_from; names may be waived in "
           "checkpoint.waive_missing and waive_unused)");
}

bool is_damage(Code code) {
  return code == Code::kUnreadableCheckpoint || code == Code::kNoCheckpoint ||
         code == Code::kBadModelFile || code == Code::kDamagedCheckpoint;
}

void check_fingerprint(const ResumePoint& point, const Fingerprint& now, const EarlierKeys& earlier,
                       const std::vector<std::string>& waived) {
  if (point.manifest.fingerprint.empty() && !now.empty()) {
    fail(Code::kOtherRun, point.folder,
         "holds a model's weights, without an optimizer or a run to resume: begin from them, in "
         "another checkpoint.dir, with checkpoint.init_from=" +
             point.folder);
  }
  std::string lines;
  std::vector<std::string> names;
  for (const std::string& line : changes(point.manifest.fingerprint, now, earlier)) {
    const std::string name = line.substr(0, line.find(": "));
    if (matches_any(waived, name)) continue;
    lines += "\n  " + line;
    names.push_back(name);
  }
  if (lines.empty()) return;
  fail(Code::kOtherRun, point.folder,
       "was saved by a run that differs:" + lines +
           "\n  (to resume anyway, add: " + waive_option(waived, names) + ")");
}

// Rank 0 looks; the others read the manifest that it found.
std::optional<ResumePoint> find_on_all(const CheckpointConfig& config,
                                       const std::vector<int64_t>& tried,
                                       const CheckpointGroup& group) {
  std::optional<ResumePoint> point;
  const std::string folder = run_on_all(group, [&] {
    if (group.rank == 0) point = find_resume(config.dir, config.resume, tried);
    return point ? point->folder : std::string();
  })[0];
  if (folder.empty()) return {};
  run_on_all(group, [&] {
    if (!point) point = ResumePoint{folder, read_manifest(folder)};
    return std::string();
  });
  return point;
}

constexpr size_t kMostFaultBytes = size_t{1} << 20;  // of all ranks' messages
constexpr int kGuessingRanks = 8;                    // that read all index files where names lack

std::vector<Want> wants_of(const CheckpointState& state) {
  std::vector<Want> out;
  for (const Part& part : state.parts()) out.push_back({part.tensor.name, part.tensor.box});
  return out;
}

// What this rank does, but for the offers of the others, which come once all fits.
LoadPlan planned(const ShardFiles& files, const std::vector<Want>& wants,
                 const LoadOptions& options, const CheckpointGroup& group) {
  const std::vector<ShardInfo>& shards = files.manifest().shards;
  TextsOfRanks texts;
  run_on_all(group, [&] {
    texts = ask(read_share(files.folder(), shards, group.rank, group.size), wants, group.size);
    return std::string();
  });
  texts = exchange_texts(group, texts);
  run_on_all(group, [&] {
    TensorHome home(files.folder(), shards, group.size);
    home.take(texts);
    texts = home.answer();
    return std::string();
  });
  return plan_of(wants, exchange_texts(group, texts), options.buffer_bytes);
}

int64_t index_bytes(const ShardFiles& files, const CheckpointGroup& group) {
  const std::vector<ShardInfo>& shards = files.manifest().shards;
  int64_t out = files.header_bytes();
  for (const size_t i : share_of(shards, group.rank, group.size)) out += shards[i].index_bytes;
  return out;
}

// Rank 0 opens the base first, so that an error is reported once; then the other ranks open it.
Manifest with_base_on_all(const ResumePoint& point, const std::string& base_at,
                          const CheckpointGroup& group) {
  Manifest out = point.manifest;
  if (!out.base) return out;
  for (const bool first : {true, false}) {
    run_on_all(group, [&] {
      if (first == (group.rank == 0)) {
        out =
            with_base(point.manifest, point.folder, base_at.empty() ? "" : place_of_step(base_at));
      }
      return std::string();
    });
  }
  return out;
}

Loaded load_point(ResumePoint point, const CheckpointState& state, const LoadOptions& options,
                  const CheckpointGroup& group, const Faults& faults) {
  const auto start = Clock::now();
  const std::string folder = point.folder;
  const ShardFiles files(folder, with_base_on_all(point, options.base_at, group));
  point.manifest.base = files.manifest().base;
  const std::vector<Want> wants = wants_of(state);
  LoadPlan plan = planned(files, wants, options, group);
  Matching matching(files, plan, options, state.lackable());
  run_on_all(group, [&] {
    matching.match(state, group.rank < kGuessingRanks);
    if (group.rank == 0) matching.match_unused();
    fail_faults(folder, matching.faults, kMostFaultBytes / static_cast<size_t>(group.size));
    return std::string();
  });
  take_offers(plan, wants, exchange_texts(group, offer(plan, group.size)));
  Filling filling(files, options, group, faults, plan, state.parts());
  filling.run();
  Loaded out{.point = std::move(point)};
  run_on_all(group, [&] {
    out.bytes_read = filling.bytes_read();
    out.index_bytes = index_bytes(files, group);
    out.notes = std::move(matching.notes);
    out.own = std::move(matching.own), out.based = std::move(matching.based);
    if (options.strict && !filling.unsound().empty()) {
      fail(Code::kDamagedCheckpoint, folder, "holds numbers that are not finite:", [&] {
        std::string lines;
        for (const std::string& line : filling.unsound()) lines += "\n  " + line;
        return lines;
      }());
    }
    for (const std::string& line : filling.unsound()) out.notes.push_back(line);
    if (group.rank > 0) return std::string();  // one looks into the folder for all
    for (const std::string& file : files.extra_files()) {
      out.notes.push_back(file + " is in the folder and in no manifest: ignored");
    }
    return std::string();
  });
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

}  // namespace

Loaded load(const std::string& folder, const CheckpointState& state, const LoadOptions& options,
            const CheckpointGroup& group, const Faults& faults) {
  ResumePoint point;
  point.folder = folder;
  run_on_all(group, [&] {
    point.manifest = read_manifest(folder);
    return std::string();
  });
  return load_point(std::move(point), state, options, group, faults);
}

std::optional<Loaded> resume(const CheckpointConfig& config, const CheckpointState& state,
                             const Fingerprint& now, const CheckpointGroup& group,
                             const Faults& faults, const EarlierKeys& earlier) {
  const LoadOptions options = {.waive_missing = config.waive_missing,
                               .waive_unused = config.waive_unused,
                               .cast = config.cast,
                               .strict = config.strict,
                               .base_at = config.init_from};
  std::vector<int64_t> tried;
  std::vector<std::string> damaged;
  std::optional<Code> first;
  while (true) {
    std::optional<ResumePoint> point;
    try {
      point = find_on_all(config, tried, group);
    } catch (const Error& e) {
      if (!first || !is_damage(e.code())) throw;
    }
    if (!point && first) {  // Not a fresh start.
      std::string all = "every checkpoint of " + config.dir + " is damaged:";
      for (const std::string& why : damaged) all += "\n  " + why;
      throw Error(all, *first);
    }
    if (!point) return {};
    check_fingerprint(*point, now, earlier, config.waive_changed);
    try {
      Loaded loaded = load_point(*point, state, options, group, faults);
      loaded.point.passed_over.insert(loaded.point.passed_over.begin(), damaged.begin(),
                                      damaged.end());
      return loaded;
    } catch (const Error& e) {
      if (config.resume.kind != Resume::kAuto || !is_damage(e.code())) throw;
      if (!first) first = e.code();
      damaged.push_back("step " + std::to_string(point->manifest.step) + ": " + e.what());
      tried.push_back(point->manifest.step);
    }
  }
}

}  // namespace troupe
