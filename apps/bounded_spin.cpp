// How long threads wait awake, set before OpenMP reads it.
//
// PyTorch's threads are libgomp's. One that has nothing to do spins for about 3 ms before it
// sleeps, and where other programs want the cores, the time that it spins is time that they, and
// the thread that it waits for, do not get. bench/busy_neighbors.py measures what a spin costs an
// idle and a busy machine. libgomp reads GOMP_SPINCOUNT when it is loaded, which
// is before main() and before any constructor that could be made to run first; so the program is
// executed again, with the variable, before the constructors of its libraries have run: that costs
// their relocation, 50 ms, once. Ranks of `troupe launch` inherit the variable. What the user has
// set stays.
#include <unistd.h>

#include <cstring>

namespace {

constexpr char kSpin[] = "GOMP_SPINCOUNT=20000";

bool is_set(char* const* environment, const char* name) {
  const size_t length = std::strlen(name);
  for (; *environment != nullptr; ++environment) {
    if (std::strncmp(*environment, name, length) == 0 && (*environment)[length] == '=') return true;
  }
  return false;
}

// Runs before libc has been set up: it takes no memory and reads no global of libc.
void bound_spin(int, char** words, char** environment) {
  constexpr size_t kMost = 4096;  // variables; with more of them the spin stays as it is
  static char own[sizeof(kSpin)];
  static char* with_spin[kMost + 2];
  if (is_set(environment, "GOMP_SPINCOUNT") || is_set(environment, "OMP_WAIT_POLICY")) return;
  size_t count = 0;
  for (; environment[count] != nullptr; ++count) {
    if (count == kMost) return;
    with_spin[count] = environment[count];
  }
  std::memcpy(own, kSpin, sizeof(kSpin));
  with_spin[count] = own;
  ::execve("/proc/self/exe", words, with_spin);  // where it fails, the program goes on as it is
}

}  // namespace

// A program's own functions of this section are called before all constructors, its libraries' too.
__attribute__((section(".preinit_array"),
               used)) void (*const troupe_bound_spin)(int, char**, char**) = bound_spin;
