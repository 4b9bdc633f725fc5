#include "troupe/distributed/status/process.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <fstream>
#include <sstream>

namespace troupe {

Process this_process() {
  Process out{.machine = "", .id = ::getpid()};
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), out.machine);
  std::array<char, 64> name_space = {};
  const ssize_t size = ::readlink("/proc/self/ns/pid", name_space.data(), name_space.size());
  if (size > 0) out.machine.append(name_space.data(), static_cast<size_t>(size));
  return out;
}

std::string to_text(const Process& process) {
  return std::to_string(process.id) + ' ' + process.machine;
}

Process process_of(const std::string& text) {
  Process out;
  std::istringstream in(text);
  in >> out.id >> out.machine;
  return out;
}

namespace {

// What /proc/ID/stat has behind the name, which may hold anything, ")" too.
std::string stat_of(int process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  std::string line;
  std::getline(file, line);
  const size_t end = line.rfind(") ");
  return end == std::string::npos ? std::string() : line.substr(end + 2);
}

// The field of proc(5) with the number `count` + 2: the first is the state. Empty: no such process.
std::string field_of(int process, int count) {
  std::istringstream in(stat_of(process));
  std::string word;
  for (int i = 0; i < count; ++i) in >> word;
  return in ? word : std::string();
}

}  // namespace

char state_of(int process) {
  const std::string stat = stat_of(process);
  return stat.empty() ? '\0' : stat.front();
}

std::string begin_of(int process) {
  constexpr int kStartTime = 20;
  return field_of(process, kStartTime);
}

int spares_beside(int process) {
  constexpr int kParent = 2;
  const std::string parent = field_of(process, kParent);
  if (parent.empty()) return 0;
  std::ifstream children("/proc/" + parent + "/task/" + parent + "/children");
  int out = 0;
  for (std::string child; children >> child;) {
    std::string name;
    std::getline(std::ifstream("/proc/" + child + "/comm"), name);
    out += name == kSpareName ? 1 : 0;
  }
  return out;
}

bool has_ended(int process) {
  return has_ended(process, state_of(process));
}

// A process that /proc does not show may be another user's, or this one have no descriptors left.
bool has_ended(int process, char state) {
  if (state == '\0') return ::kill(process, 0) != 0 && errno == ESRCH;
  return state == 'Z' || state == 'X';
}

}  // namespace troupe
