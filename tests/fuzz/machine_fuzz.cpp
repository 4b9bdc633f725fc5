// Any bytes as a machine file: faults, or a machine whose costs are finite numbers, however many
// ranks there are. The same with one of its numbers made large.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tests/fuzz/large_number.h"
#include "troupe/core/check.h"
#include "troupe/plan/machine.h"

namespace {

void look_at(const std::string& text) {
  const int fd = ::memfd_create("machine", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, text.data(), text.size()) != std::ssize(text)) std::abort();
  try {
    const troupe::Machine m = troupe::load_machine("/proc/self/fd/" + std::to_string(fd));
    if (m.ranks_per_host < 1 || m.ranks_per_host > 1 << 16) std::abort();
    for (const int64_t ranks : {2, 8, 1 << 20}) {
      const troupe::GroupTopology group{.ranks = ranks, .hosts = ranks > 8 ? ranks / 8 : 1};
      if (m.inside.bandwidth == 0 || m.between.bandwidth == 0) continue;
      if (!std::isfinite(troupe::gather_seconds(m, group, 1e15))) std::abort();
      if (!std::isfinite(troupe::exchange_seconds(m, group, 1e15))) std::abort();
    }
  } catch (const troupe::Error& e) {
    if (e.exit_class() != troupe::ExitClass::kUsage) std::abort();
  }
  ::close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  look_at(text);
  look_at(with_large_number(text));
  return 0;
}
