// What the system says of processes: memory, descriptors, bytes that were read from files.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

namespace troupe::control_plane {

// Makes the soft limit of open descriptors the hard one; returns it.
int64_t raise_descriptors();
int64_t open_descriptors();
// What this process has more than before a world that is gone by now: a process that it began, or
// more open descriptors than `before`, of which each watch that has not ended holds one. Waits for
// what is about to end, for seconds; empty: nothing.
std::string left_behind(int64_t before);
// Stacks of the threads that begin from now on: a rank is a thread, and there are thousands.
void set_small_stacks();

int64_t memory_now(pid_t process);   // resident, of a process; 0: it is gone
int64_t memory_peak(pid_t process);  // since it began, or since reset_peak()
void reset_peak(pid_t process);
int64_t memory_available();  // of the machine
int64_t file_bytes_read();   // by this process, through read and its like; sockets' recv is not one

}  // namespace troupe::control_plane
