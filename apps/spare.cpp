#include "apps/spare.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <string>

#include "troupe/core/check.h"
#include "troupe/distributed/status/process.h"
#include "troupe/distributed/world/world.h"
#include "troupe/train/machine/warm_up.h"
#include "troupe/train/recipe/recipe.h"

namespace troupe {
namespace {

// A signal to stop ends this process meanwhile: a rank keeps those back, in all of its threads, so
// that none may begin while there is one of these.
class EndsBySignal {
 public:
  EndsBySignal() { set_mask(SIG_UNBLOCK); }
  EndsBySignal(const EndsBySignal&) = delete;
  EndsBySignal& operator=(const EndsBySignal&) = delete;
  ~EndsBySignal() { set_mask(SIG_BLOCK); }

 private:
  static void set_mask(int how) {
    sigset_t set;
    ::sigemptyset(&set);
    for (const int s : {SIGTERM, SIGINT}) ::sigaddset(&set, s);
    ::pthread_sigmask(how, &set, nullptr);
  }
};

// All that comes until the other end is closed.
std::string read_all(int pipe) {
  std::string out;
  std::array<char, 64> part{};
  while (true) {
    const ssize_t n = ::read(pipe, part.data(), part.size());
    if (n > 0) out.append(part.data(), static_cast<size_t>(n));
    if (n == 0 || (n < 0 && errno != EINTR)) return out;
  }
}

int64_t local_rank() {
  const auto place = launcher_environment();
  return place ? place->local_rank : 0;
}

}  // namespace

void wait_if_spare(const TrainOptions& options) {
  const char* const pipe = std::getenv(kSpareVariable);
  if (pipe == nullptr) return;
  const int descriptor = std::atoi(pipe);
  TROUPE_CHECK(descriptor > STDERR_FILENO, kSpareVariable, pipe, "is no pipe of troupe launch");
  Sources sources;
  warm_up(load_recipe(options.recipe.path, options.recipe.sets, sources), local_rank());
  std::string attempt;
  {
    const EndsBySignal ends;
    ::prctl(PR_SET_NAME, kSpareName);
    attempt = read_all(descriptor);
    if (attempt.empty()) ::_exit(0);
  }
  ::prctl(PR_SET_NAME, "troupe");
  ::close(descriptor);
  ::unsetenv(kSpareVariable);
  ::setenv(kAttemptVariable, attempt.c_str(), /*overwrite=*/1);
}

}  // namespace troupe
