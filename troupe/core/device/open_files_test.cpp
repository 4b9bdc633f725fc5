#include "troupe/core/device/open_files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>

namespace troupe {
namespace {

// In a child, whose limits are its own.
bool holds_in_a_child(const std::function<bool()>& f) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(f() ? 0 : 1);
  int status = 0;
  return ::waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

int64_t soft_limit() {
  struct rlimit limit = {};
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? static_cast<int64_t>(limit.rlim_cur) : -2;
}

TEST(OpenFiles, TheSoftLimitIsRaisedToTheHardOne) {
  EXPECT_TRUE(holds_in_a_child([] {
    const struct rlimit limit = {.rlim_cur = 64, .rlim_max = 200};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    const OpenFiles files = raise_open_files();
    return files.given == 64 && files.allowed == 200 && soft_limit() == 200;
  }));
}

TEST(OpenFiles, OneThatIsAtTheHardLimitStays) {
  EXPECT_TRUE(holds_in_a_child([] {
    const struct rlimit limit = {.rlim_cur = 200, .rlim_max = 200};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    const OpenFiles files = raise_open_files();
    return files.given == 200 && files.allowed == 200;
  }));
}

TEST(OpenFiles, TheFirstCallIsWhatTheProgramBeganWith) {
  EXPECT_TRUE(holds_in_a_child([] {
    const struct rlimit limit = {.rlim_cur = 64, .rlim_max = 200};
    if (::setrlimit(RLIMIT_NOFILE, &limit) != 0) return false;
    return open_files().given == 64 && open_files().given == 64 && open_files().allowed == 200;
  }));
}

}  // namespace
}  // namespace troupe
