// Any bytes as an `.idx` beside a `.bin` of 64 bytes: it is read within its bounds or refused.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/data/tokens/token_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const int fd = ::memfd_create("idx", MFD_CLOEXEC);
  if (fd < 0 || ::write(fd, data, size) != static_cast<ssize_t>(size)) std::abort();
  try {
    const troupe::TokenIndex index("/proc/self/fd/" + std::to_string(fd), 64);
    std::vector<int32_t> lengths(static_cast<size_t>(index.num_sequences()));
    index.lengths(0, lengths);
    int64_t sum = 0;
    for (const int32_t length : lengths) sum += length;
    if (sum != index.num_tokens()) std::abort();
  } catch (const troupe::Error&) {
  }
  ::close(fd);
  return 0;
}
