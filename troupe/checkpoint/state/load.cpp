#include <ATen/core/Tensor.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <set>

#include "troupe/checkpoint/files/names.h"
#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/state/checkpoint.h"
#include "troupe/checkpoint/state/fill.h"
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

// What does not fit, a line each; and what was let pass.
class Matching {
 public:
  Matching(const CheckpointReader& reader, const LoadOptions& options,
           const std::vector<std::string>& may_lack)
      : reader_(reader), options_(options), may_lack_(may_lack) {}

  void match(const CheckpointState& state) {
    size_t lacking = 0;
    std::vector<std::string_view> names;
    for (const auto& [name, tensor] : reader_.tensors()) names.push_back(name);
    for (const Part& part : state.parts()) {
      const TensorBox& t = part.tensor;
      const CheckpointReader::Tensor* const stored = reader_.find(t.name);
      const bool fits = stored != nullptr && stored->global == t.box.global;
      if (!fits && matches_any(may_lack_, t.name)) {
        if (stored != nullptr) used_.insert(t.name);
        ++lacking;
      } else if (stored != nullptr) {
        compare(t, *stored, part);
      } else if (matches_any(options_.waive_missing, t.name)) {
        notes.push_back("waived: " + t.name + " is not in the checkpoint and stays as it was");
      } else {
        constexpr size_t kMostGuesses = 100;  // each compares a name with all that are stored
        const std::string_view near =
            faults.size() < kMostGuesses ? nearest(t.name, names) : std::string_view();
        faults.push_back("missing: " + t.name + ' ' + shown(t.element, t.box.global) +
                         (near.empty() ? "" : "; there is " + std::string(near)));
      }
    }
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

  // A bit for each tensor of the checkpoint, in order: whether this rank uses it.
  std::string used() const {
    std::string out(reader_.tensors().size(), '0');
    size_t i = 0;
    for (const auto& [name, tensor] : reader_.tensors())
      out[i++] = used_.contains(name) ? '1' : '0';
    return out;
  }

  void match_unused(const std::vector<std::string>& used_of_ranks) {
    size_t i = 0, left = 0;
    for (const auto& [name, tensor] : reader_.tensors()) {
      const auto has = [i](const std::string& used) { return i < used.size() && used[i] == '1'; };
      const bool is_used = std::ranges::any_of(used_of_ranks, has);
      ++i;
      if (is_used) continue;
      if (matches_any(may_lack_, name)) {
        ++left;
        continue;
      }
      const std::string line = name + ' ' + shown(tensor.element, tensor.global);
      matches_any(options_.waive_unused, name) ? notes.push_back("waived: unused " + line)
                                               : faults.push_back("unused: " + line);
    }
    if (left > 0) {
      notes.push_back(counted(left, may_lack_) + " of the checkpoint " +
                      (left == 1 ? "is" : "are") + " not used here");
    }
  }

  std::vector<std::string> faults, notes;
  std::vector<const Part*> wanted;

 private:
  void compare(const TensorBox& t, const CheckpointReader::Tensor& stored, const Part& part) {
    used_.insert(t.name);
    const bool shape_fits = stored.global == t.box.global;
    const bool casts = options_.cast && is_float(stored.element) && is_float(t.element);
    if (shape_fits && (stored.element == t.element || casts)) {
      wanted.push_back(&part);
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

  const CheckpointReader& reader_;
  const LoadOptions& options_;
  const std::vector<std::string>& may_lack_;
  std::set<std::string, std::less<>> used_;
  std::map<std::string, std::set<std::string>> casts_;  // " from F32 to BF16": the names
};

void fail_faults(const std::string& folder, std::vector<std::string> faults) {
  if (faults.empty()) return;
  std::ranges::sort(faults);
  faults.erase(std::unique(faults.begin(), faults.end()), faults.end());
  std::string text = "differs from the model in " + std::to_string(faults.size()) + " tensors";
  for (const std::string& line : faults) text += "\n  " + line;
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
  for (const std::string& line : changes(point.manifest.fingerprint, now, earlier)) {
    if (!matches_any(waived, line.substr(0, line.find(": ")))) lines += "\n  " + line;
  }
  if (lines.empty()) return;
  fail(Code::kOtherRun, point.folder,
       "was saved by a run that differs:" + lines +
           "\n  (to resume anyway, list these names in checkpoint.waive_changed)");
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

}  // namespace

Loaded load(const std::string& folder, const CheckpointState& state, const LoadOptions& options,
            const CheckpointGroup& group, const Faults& faults) {
  const auto start = Clock::now();
  std::unique_ptr<CheckpointReader> reader;
  std::unique_ptr<Matching> matching;
  const std::vector<std::string> used = run_on_all(group, [&] {
    reader = std::make_unique<CheckpointReader>(folder);
    matching = std::make_unique<Matching>(*reader, options, state.lackable());
    matching->match(state);
    return matching->used();
  });
  Loaded out;
  run_on_all(group, [&] {
    matching->match_unused(used);
    fail_faults(folder, matching->faults);
    return std::string();
  });
  Filling filling(*reader, options, group, faults);
  filling.run(matching->wanted);
  run_on_all(group, [&] {
    out.bytes_read = filling.bytes_read();
    out.notes = std::move(matching->notes);
    if (options.strict && !filling.unsound().empty()) {
      fail(Code::kDamagedCheckpoint, folder, "holds numbers that are not finite:", [&] {
        std::string lines;
        for (const std::string& line : filling.unsound()) lines += "\n  " + line;
        return lines;
      }());
    }
    for (const std::string& line : filling.unsound()) out.notes.push_back(line);
    for (const std::string& file : reader->extra_files()) {
      out.notes.push_back(file + " is in the folder and in no manifest: ignored");
    }
    return std::string();
  });
  out.point = {folder, reader->manifest()};
  out.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  return out;
}

std::optional<Loaded> resume(const CheckpointConfig& config, const CheckpointState& state,
                             const Fingerprint& now, const CheckpointGroup& group,
                             const Faults& faults, const EarlierKeys& earlier) {
  const LoadOptions options = {.waive_missing = config.waive_missing,
                               .waive_unused = config.waive_unused,
                               .cast = config.cast,
                               .strict = config.strict};
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
      Loaded loaded = load(point->folder, state, options, group, faults);
      loaded.point.latest_note = std::move(point->latest_note);
      loaded.point.passed_over = std::move(point->passed_over);
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
