// Checkpoints, as the trainer uses them. A step is a folder RUN/step-001200 that appears whole or
// not at all and is never changed: docs/reference/RELIABILITY.md. It holds tensors in global
// coordinates, so any parallel layout loads what any other saved.
//
//   CheckpointState state;                       // once: it points at the live tensors
//   state.add("model." + name, param);           // add_like() for moments and masters
//   const auto loaded = resume(config, state, fingerprint, group, faults);
//   if (loaded) read_scalars(loaded->point.manifest, loaded->point.folder, counters);
//   Saver saver(config, run_id, group, log, fs, faults);     // takes the run folder
//   saver.go_on_from(loaded ? loaded->point.manifest.step : -1);
//   ...
//   saver.save(state, {.step = step, .scalars = json_of(counters)});   // at an interval
//   if (saver.failed()) saver.wait();            // each step: cheap
//   saver.take_results();
//   saver.wait();                                // at the end: throws what went wrong
//
// Any number of ranks: all of them make the same calls in the same order. Each writes the boxes
// that it owns, and rank 0 the manifest, once all have written.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "troupe/checkpoint/files/box.h"
#include "troupe/checkpoint/folder/config.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/state/checkpoint_group.h"
#include "troupe/checkpoint/state/save_step.h"
#include "troupe/core/file/fault.h"
#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/distributed/params/param.h"

namespace troupe {

// The ranks that hold the same box: `index` is this one's place among `count`. One of them, spread
// by name, owns it and writes it; all of them read it.
struct Replica {
  int64_t index = 0;
  int64_t count = 1;
};

// A tensor that is saved or filled, flat. Or f32 numbers of which memory holds another form, and
// files know nothing: in halves, `value` in bf16 and `low`, int16, what that leaves of each
// (core/number/split_f32.h); or moments in 8 bits, codes in `value` and a scale for each 256 of
// them (core/number/moment8.h). Or numbers that a load alone knows: it gives them to `take`, and
// `value`, without memory, says how many there are and of which type.
struct StateTensor {
  // Takes numbers from `at` on, on the host. Blocks of codes may be filled in several pieces.
  using Take = std::function<void(int64_t at, const at::Tensor& numbers)>;

  StateTensor(at::Tensor whole) : value(std::move(whole)) {}  // NOLINT(google-explicit-constructor)
  StateTensor(at::Tensor high, at::Tensor rest) : value(std::move(high)), low(std::move(rest)) {}
  // The codes begin with a block. A load gives its numbers to `take`.
  static StateTensor coded(const at::Tensor& codes, const at::Tensor& scales, bool second,
                           Take take);

  static StateTensor taken(int64_t count, at::ScalarType type, Take take);

  bool in_place() const { return !low.defined() && !scales.defined(); }
  StateTensor part(int64_t at, int64_t count) const;
  void fill(const at::Tensor& numbers) const;  // flat, on the host; cast where types differ
  // The f32 numbers at, at + 1, ..; not in place, on the host.
  void numbers(int64_t at, std::span<float> out) const;

  at::Tensor value;
  at::Tensor low = {}, scales = {};
  bool second = false;  // of codes: second moments
  int64_t first = 0;    // of codes: their first one's place in its block
  Take take = {};
};

// The tensors of a run under global names. It holds references: what is saved or loaded is what the
// tensors are then. A tensor must be contiguous and may be on any device.
class CheckpointState {
 public:
  struct Part : StateTensor {  // of the box's number of elements
    TensorBox tensor;
    bool owned;  // this rank writes it
  };

  // A parameter's local box; one entry an expert where it is per expert.
  void add(const std::string& name, const Param& p, Replica replica = {});
  // Something of the same box, such as a moment: `value` has the parameter's local elements.
  void add_like(const std::string& name, const Param& p, const at::Tensor& value,
                Replica replica = {});
  // The same of a part: the parameter's local elements from, from + 1, ... as they are in memory;
  // boxes come of it, as few as there can be. No elements add nothing.
  void add_range(const std::string& name, const Param& p, int64_t from, const StateTensor& live,
                 Replica replica = {});
  void add_box(const std::string& name, const Box& box, const StateTensor& live,
               Replica replica = {});

  // Names (with *) that a run need not have: what a checkpoint lacks of them, or holds in other
  // sizes, stays as it is here, and what it has more is not read; each told in one line.
  void may_lack(std::string names) { may_lack_.push_back(std::move(names)); }

  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<std::string>& lackable() const { return may_lack_; }
  int64_t owned_bytes() const;  // what a save of this rank writes
  // Those parts of another state whose names `keeps` lets pass.
  void take(const CheckpointState& other, const std::function<bool(const std::string&)>& keeps);

 private:
  std::vector<Part> parts_;
  std::vector<std::string> may_lack_;
};

class Saver {
 public:
  // Rank 0 makes the run folder where there is none (E2008 if it cannot be), takes its lock (E7005
  // if another run holds it) and clears what a killed save left. `fs` and `faults` outlive it.
  Saver(CheckpointConfig config, std::string run_id, CheckpointGroup group, Log log, Fs& fs,
        const Faults& faults);
  ~Saver();  // waits for what is being written; an error that nobody asked for is logged

  // Call before the first save: the run resumes from that step (-1: from the start). Complete later
  // steps, of a branch that is given up or damaged, are renamed to "step-001300.aside", so that
  // neither a save nor a later start takes them for this run's.
  void go_on_from(int64_t step);

  // With `background` returns when the state is copied, else when the step is published. One save
  // is in flight: another one waits for it. Under `when_busy: skip` the caller does not come here
  // while it is busy() on any rank. What a failed write does is `on_error`'s to say: a warning, an
  // Error thrown here or by wait(), or to try again.
  void save(const CheckpointState& state, const SaveInfo& info);
  bool busy() const;
  // On rank 0, for each step: E7005 where the run folder was moved, or was deleted and is another
  // run's now. A folder that was deleted is made anew, with its lock.
  void keep_folder();
  // An Error is to be thrown. All ranks come to have it, but not at one moment: where any has, all
  // call wait().
  bool failed() const;
  std::vector<SaveResult> take_results();  // of the saves that have ended since the last call
  // Waits. Throws if the last save failed, also under `on_error: retry`: nothing follows it.
  void wait();
  // Drops the save in flight unless it is being published: a second signal came. Does not wait.
  void abandon();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

struct LoadOptions {
  std::vector<std::string> waive_missing = {};  // in the state, not in the checkpoint: left alone
  std::vector<std::string> waive_unused = {};   // in the checkpoint, not in the state
  bool cast = false;
  bool strict = false;
  std::string base_at = "";  // a base's run or step that was moved there (files/base.h)
  int64_t buffer_bytes = int64_t{64} << 20;  // read at a time to be sent, by a rank; or one slice
  int threads = 4;
};

struct Loaded {
  ResumePoint point;        // its base, where it has one, as it was found
  int64_t bytes_read = 0;   // by this rank, of tensors
  int64_t index_bytes = 0;  // by this rank, of index files and of shards' headers
  double seconds = 0;
  // Names of this rank's parts: those that the checkpoint itself had, and its base.
  std::set<std::string> own = {}, based = {};
  std::vector<std::string> notes = {};  // steps passed over, casts, NaN, waived names: for the log
};

// Fills the state from a checkpoint and its base, each byte checked against its checksum. A byte of
// a tensor is read by one rank, which sends the others what they need of it, and so is a byte of an
// index file (load_plan.h). All missing, unused, reshaped and retyped names are one Error (E4005);
// rank 0 tells of the unused ones.
Loaded load(const std::string& folder, const CheckpointState& state, const LoadOptions& options,
            const CheckpointGroup& group, const Faults& faults);

// find_resume() and load(). `auto` takes an older step where one is damaged, with a note, and
// throws if all are. Throws E4006 with every change of the fingerprint that is not
// waived; `earlier` is that of changes(). Returns nothing for a fresh start.
std::optional<Loaded> resume(const CheckpointConfig& config, const CheckpointState& state,
                             const Fingerprint& now, const CheckpointGroup& group,
                             const Faults& faults, const EarlierKeys& earlier = {});

}  // namespace troupe
