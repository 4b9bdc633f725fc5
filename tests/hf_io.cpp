// What tests/hf_io_test.py runs.
//   hf_io import FOLDER RUN          a hub's folder into a run folder of ours
//   hf_io export RUN FOLDER [DTYPE]  and back
//   hf_io config FOLDER              the model's config, as a recipe
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "troupe/checkpoint/hf/hf_weights.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"

namespace {

int run(const std::vector<std::string>& args) {
  troupe::Fs fs;
  if (args.size() >= 2 && args[0] == "config") {
    print_config(std::cout, troupe::read_hf_config(args[1]).model);
  } else if (args.size() >= 3 && args[0] == "import") {
    const troupe::Log log({troupe::stderr_sink()});
    troupe::import_hf(args[1], args[2], log, fs);
  } else if (args.size() >= 3 && args[0] == "export") {
    troupe::ExportOptions options;
    if (args.size() > 3) options.dtype = args[3];
    options.file_bytes = 100'000;  // so that several files are written
    troupe::export_hf(troupe::read_hf_config(args[1] + "/hf"),
                      troupe::tensors_of_checkpoint(args[1] + "/step-000000"), args[2],
                      args[1] + "/hf", options, fs);
  } else {
    return 2;
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run({argv + 1, argv + argc});
  } catch (const troupe::Error& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return static_cast<int>(e.exit_class());
  }
}
