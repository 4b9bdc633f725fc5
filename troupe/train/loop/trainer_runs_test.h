// Whole runs of a nano model in one process, as tests of the loop make them.
#pragma once

#include <ATen/ops/cat.h>

#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "troupe/core/config/config.h"
#include "troupe/core/file/file.h"
#include "troupe/testing/temporary_folder.h"
#include "troupe/train/forecast/forecast.h"
#include "troupe/train/layout/resolved_run.h"
#include "troupe/train/loop/trainer.h"
#include "troupe/train/params/master_of_test.h"

namespace troupe {

// The nano model of the reliability tests, on bytes.
inline constexpr std::string_view kNano =
    "model: {layers: 2, width: 32, heads: 4, vocab: 256, max_positions: 64,\n"
    "        moe: {experts: 4, top_k: 2, hidden: 64, router: {balance: {aux_loss: 0.01}}}}\n"
    "data: {train: [{kind: mock}], valid: [{kind: mock, documents: 4}], sequence: 32}\n"
    "train: {global_batch: 8, steps: 12, precision: fp32, optimizer: {lr: 3e-3},\n"
    "        schedule: {warmup: 2}}\n"
    "checkpoint: {every_steps: 4}\n"
    "run: {device: cpu, threads: 1}\n";

struct Result {
  RunEnd end;
  std::vector<std::string> losses;  // as the log tells them
  at::Tensor weights;               // all masters, moments and routers' state, end to end
  TrainState state;
};

inline at::Tensor all_of(const ParamStore& store) {
  std::vector<at::Tensor> out;
  for (const Bucket& b : store.buckets()) {
    out.push_back(master_of(b).flatten());
    for (const at::Tensor& moment : b.state) out.push_back(moment.flatten().to(at::kFloat));
    for (const at::Tensor& scale : b.scales) out.push_back(scale.flatten());
  }
  for (const ParamStore::Slot& slot : store.slots()) {
    for (const at::Tensor& x : slot.state) out.push_back(x.flatten());
  }
  for (const NamedParam& other : store.others()) out.push_back(other.param->value.flatten());
  return at::cat(out).detach();
}

inline size_t count_of(const std::string& text, const std::string& what) {
  size_t out = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++out;
  return out;
}

inline double loss_of(const std::string& line) {
  return std::stod(line.substr(line.rfind(':') + 1));
}

class Runs {
 public:
  Result run(const std::string& name, const std::vector<std::string>& sets = {},
             const std::string& faults = "") {
    Result out;
    out.end = run(name, sets, faults, [&](Trainer& trainer) {
      out.weights = all_of(trainer.learner().store());
      out.state = trainer.state();
    });
    out.losses = losses(name);
    return out;
  }

  std::map<std::string, at::Tensor> weights_of(const std::string& name,
                                               const std::vector<std::string>& sets) {
    std::map<std::string, at::Tensor> out;
    run(name, sets, "", [&](Trainer& trainer) {
      trainer.learner().model().for_each_param(
          -1, [&](const std::string& param, Param& p) { out[param] = p.value.detach().clone(); });
    });
    return out;
  }

  RunEnd run(const std::string& name, std::vector<std::string> sets, const std::string& faults,
             const std::function<void(Trainer&)>& look) {
    Recipe recipe;
    read_config(parse_yaml(std::string(kNano), "nano"), recipe);
    sets.push_back("checkpoint.dir=" + (folder_ / name));
    for (const std::string& set : sets) read_config(override_yaml(set), recipe);
    validate(recipe, {});
    Fs fs;
    Signals signals;
    const Faults points(faults);
    Trainer trainer(resolve_alone(recipe, available_memory(recipe)),
                    {.log = Log(),
                     .fs = fs,
                     .faults = points,
                     .signals = signals,
                     .force = false,
                     .continue_with = "troupe train nano"});
    const RunEnd end = trainer.run();
    look(trainer);
    return end;
  }

  std::vector<std::string> losses(const std::string& name) const {
    std::vector<std::string> out;
    std::istringstream lines(read_file(folder_ / name + "/log.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("\"loss\":");
      if (line.find("\"event\"") == std::string::npos && at != std::string::npos) {
        out.push_back(line.substr(0, line.find(',')) + line.substr(at, line.find(',', at) - at));
      }
    }
    return out;
  }
  // The values of `key`, one per step.
  std::vector<double> field(const std::string& name, const std::string& key) const {
    std::vector<double> out;
    std::istringstream lines(read_file(folder_ / name + "/log.jsonl"));
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find('"' + key + "\":");
      if (at != std::string::npos) out.push_back(std::stod(line.substr(at + key.size() + 3)));
    }
    return out;
  }
  std::string path(const std::string& name) const { return folder_ / name; }

 private:
  testing::TemporaryFolder folder_;
};

}  // namespace troupe
