// Processes of this machine, as ranks look each other up.
#pragma once

#include <string>

namespace troupe {

// A process, as another process can look it up.
struct Process {
  std::string machine;  // and its PID namespace
  int id = 0;
};
Process this_process();
std::string to_text(const Process& process);
Process process_of(const std::string& text);
// Its state letter in /proc/PID/stat: Z or X ended, T or t stopped; 0: no such process.
char state_of(int process);
bool has_ended(int process);
bool has_ended(int process, char state);  // with what state_of() gave
// When it began, in the system's own count; another process with that number began at another time.
// Empty: no such process.
std::string begin_of(int process);

// What /proc calls a process that waits for a rank's place (troupe launch --spares).
constexpr const char* kSpareName = "troupe spare";
// How many of those have the same parent as that process, which is a rank. 0 where the system does
// not tell.
int spares_beside(int process);

}  // namespace troupe
