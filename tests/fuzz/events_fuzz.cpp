// Any bytes as a TensorBoard event file, and as an event in one whose checksums are right: a
// summary, or an Error of the class of data.
#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "troupe/core/check.h"
#include "troupe/train/observe/tensorboard.h"
#include "troupe/train/report/read_events.h"

namespace {

void read(const std::string& bytes) {
  const int fd = ::memfd_create("events", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, bytes.data(), bytes.size()) != std::ssize(bytes)) std::abort();
  try {
    const auto summary = troupe::read_events("/proc/self/fd/" + std::to_string(fd));
    if (summary.bytes > std::ssize(bytes)) std::abort();
  } catch (const troupe::Error& e) {
    if (e.exit_class() != troupe::ExitClass::kData) std::abort();
  }
  ::close(fd);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  read(bytes);
  read(troupe::tensorboard::framed(bytes));
  return 0;
}
