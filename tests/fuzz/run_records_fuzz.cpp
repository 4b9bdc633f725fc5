// Any bytes as the JSON of a run that a start or a report reads back: exit.json, env.json, and what
// a checkpoint's manifest has beside tensors, with the places of experts that were rebalanced. Read
// or refused, and no fault of the program; what was read is written and read again the same.
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/step/train_state.h"

namespace {

template <class T>
std::string written(const T& record) {
  std::ostringstream out;
  troupe::write_json(out, record);
  return out.str();
}

template <class T>
void read_as(const std::string& text) {
  try {
    T record, again;
    troupe::read_config(troupe::parse_json(text, "fuzz.json"), record);
    const std::string line = written(record);
    troupe::read_config(troupe::parse_json(line, "again.json"), again);
    if (written(again) != line) std::abort();
  } catch (const troupe::Error& e) {
    if (e.exit_class() == troupe::ExitClass::kBug) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  read_as<troupe::ExitRecord>(text);
  read_as<troupe::RunEnvironment>(text);
  read_as<troupe::TrainState>(text);
  return 0;
}
