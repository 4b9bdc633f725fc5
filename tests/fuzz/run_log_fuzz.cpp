// Any bytes as a log.jsonl: what it says of the run, or an Error that is no fault of the program.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

#include "troupe/core/check.h"
#include "troupe/train/observe/run_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("log", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const troupe::RunLog log = troupe::read_run_log("/proc/self/fd/" + std::to_string(fd));
    if (log.kills() > static_cast<int64_t>(log.sessions.size())) std::abort();
    log.seconds();
    log.bytes_per_token();
  } catch (const troupe::Error& e) {
    if (e.exit_class() == troupe::ExitClass::kBug) std::abort();
  }
  ::close(fd);
  return 0;
}
