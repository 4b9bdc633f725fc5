// Any bytes as a stage map: faults, the last of which names a map that fits, or a map that reads
// back from its own text.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "troupe/schedule/stage_map.h"

namespace {

void look_at(std::string_view text, const troupe::PipelineShape& shape) {
  const troupe::StageMapText read = troupe::read_stage_map(text, shape);
  if (read.faults.empty()) {
    const std::string printed = troupe::stage_text(read.map, shape);
    if (troupe::read_stage_map(printed, shape).map != read.map) std::abort();
    return;
  }
  const std::string& last = read.faults.back();
  if (!last.starts_with("the nearest")) return;  // not the notation
  const size_t begin = last.find('"') + 1;
  const std::string near = last.substr(begin, last.rfind('"') - begin);
  if (!troupe::read_stage_map(near, shape).faults.empty()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  look_at(text, {.layers = 61, .mtp = 1, .ranks = 16});
  const auto blocks = std::count(text.begin(), text.end(), 't');
  look_at(text, {.layers = static_cast<int>(std::min<int64_t>(blocks, 1000))});
  return 0;
}
