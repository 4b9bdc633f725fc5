#include "apps/inspect_experts.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <sstream>

#include "apps/models/measure_experts.h"
#include "apps/print.h"
#include "troupe/checkpoint/files/names.h"
#include "troupe/core/check.h"
#include "troupe/core/file/publish.h"
#include "troupe/train/run/open_data.h"
#include "troupe/train/run/trained_model.h"

namespace troupe {
namespace {

void print_layer(const ExpertUse& use, const ExpertUse::Layer& layer) {
  std::cout << "layer " << layer.layer << "  an expert's number tells " << fixed(layer.bits, 3)
            << " bits of a token's source\n";
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    const ExpertUse::Expert& expert = layer.experts[e];
    char line[64];
    std::snprintf(line, sizeof(line), "  expert %3zu", e);
    std::cout << line;
    for (size_t s = 0; s < use.sources.size(); ++s) {
      std::cout << "  " << use.sources[s].name << ' ' << fixed(expert.shares[s], 2);
    }
    for (const ExpertUse::Token& token : expert.tokens) {
      std::cout << "  " << spelled(token) << ' ' << fixed(100 * token.part, 0) << '%';
    }
    std::cout << '\n';
  }
}

void print_use(const ExpertUse& use) {
  std::cout << "step " << use.step
            << "; a source's share of an expert is 1 where it is even; a token's\n"
            << "percentage is the part of its choices that goes there\n";
  for (const ExpertUse::Source& source : use.sources) {
    std::cout << "source " << source.name << "  " << with_commas(source.tokens) << " tokens\n";
  }
  for (const ExpertUse::Layer& layer : use.layers) print_layer(use, layer);
}

}  // namespace

void inspect_experts(const InspectExperts& options) {
  const Log log({stderr_sink()}, Level::kWarning);
  TrainedModel trained = open_trained_model(options.run, options.sets);
  const ResolvedRun& recipe = trained.recipe;
  if (num_moe_layers(recipe.model) == 0) {
    fail(Code::kBadValue, options.run, "is a dense model: it has no experts");
  }
  if (options.samples < 1) fail(Code::kBadValue, "--samples", "must be at least 1");
  const OpenedData opened = open_data(recipe, {log, log});
  ExpertUse use = measure_experts(*trained.learner, *opened.data.train, opened.tokenizer.get(),
                                  {.samples = options.samples, .rows = recipe.plan.micro_batch});
  use.step = trained.step;
  std::ostringstream text;
  write_json(text, use);
  const std::string run = run_path(options.run).run, path = run + '/' + kExpertsFile;
  Fs fs;
  publish_file(fs, path, text.str() + '\n');
  if (options.json) {
    std::cout << text.str() << '\n';
    return;
  }
  print_use(use);
  std::cout << path << " has all of it, and troupe report " << run << " shows it\n";
}

}  // namespace troupe
