#include "troupe/train/run/open_data.h"

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/data/files/data_file.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/data/tokens/sources.h"

namespace troupe {

namespace {

OpenedData open_all(const ResolvedRun& run, const DataLogs& logs, const StopQuestion& stop) {
  OpenedData out;
  DataNeeds needs{.vocab = run.model.vocab,
                  .pairs = run.train.loss == LossKind::kDpo,
                  .seed = run.train.seed,
                  .batch = run.plan.batch,
                  .samples = run.plan.run.samples,
                  .log = logs.files,
                  .tries = logs.tries,
                  .stop = stop};
  if (!run.data.tokenizer.empty()) {
    out.tokenizer = open_tokenizer(run.data.tokenizer);
    require_fits(*out.tokenizer, run.model.vocab, run.data.tokenizer);
    needs.tokenizer = hex(out.tokenizer->fingerprint());
    if (run.data.tokenizer != "bytes") needs.encoder = out.tokenizer.get();
    if (out.tokenizer->special().eos >= 0) needs.eod = out.tokenizer->special().eos;
  }
  out.data = build(run.data, needs);
  return out;
}

// The files that cannot be opened besides, where one cannot: one error for all of them. What is
// behind an address is not asked for, which may take its time.
Error with_other_files(const ResolvedRun& run, const Error& first) {
  std::string all = first.what();
  const auto gather = [&](const auto& open_it) {
    try {
      open_it();
    } catch (const Error& error) {
      if (all.find(error.what()) == std::string::npos) all += std::string("\n") + error.what();
    }
  };
  std::unique_ptr<Tokenizer> tokenizer;
  if (!run.data.tokenizer.empty()) {
    gather([&] { tokenizer = open_tokenizer(run.data.tokenizer); });
  }
  const bool is_bytes = run.data.tokenizer == "bytes";
  const SourceNeeds needs{.vocab = run.model.vocab,
                          .encoder = is_bytes ? nullptr : tokenizer.get(),
                          .pairs = run.train.loss == LossKind::kDpo};
  const auto gather_all = [&](const std::vector<SourceConfig>& sources) {
    for (const SourceConfig& source : sources) {
      if (!is_url(name_of(source))) gather([&] { open(source, needs); });
    }
  };
  gather_all(run.data.train);
  for (const StageConfig& stage : run.data.stages) gather_all(stage.train);
  gather_all(run.data.valid);
  return Error(all, first.code());
}

}  // namespace

OpenedData open_data(const ResolvedRun& run, const DataLogs& logs, const StopQuestion& stop) {
  OpenedData out;
  try {
    out = open_all(run, logs, stop);
  } catch (const Error& error) {
    if (error.exit_class() != ExitClass::kData) throw;
    throw with_other_files(run, error);
  }
  if (out.data.train == nullptr) {
    fail(Code::kBadValue, "data.train", "names no data to train on");
  }
  out.data.train->require(run.plan.run.samples);
  return out;
}

OpenedData open_valid(ResolvedRun run, const Log& log) {
  if (run.data.split.empty()) {  // else the validation set is a part of the training files
    run.data.train.clear();
    run.data.stages.clear();
  }
  return open_all(run, {log, log}, {});
}

}  // namespace troupe
