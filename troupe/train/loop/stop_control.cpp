#include "troupe/train/loop/stop_control.h"

#include <csignal>

namespace troupe {

std::string StopControl::own_reason() const {
  const int signal = run_.tools.signals.stop();
  if (signal == SIGXCPU) return "the limit of processor time (ulimit -S -t)";
  if (signal != 0) return signal == SIGINT ? "interrupt" : "SIGTERM";
  return out_of_time() ? "time limit " + to_text(run_.recipe.run.time_limit) : "";
}

bool StopControl::signaled() const {
  return run_.parallel().all_reduce({run_.tools.signals.stop() != 0 ? 1.0 : 0.0})[0] > 0;
}

bool StopControl::out_of_time() const {
  if (run_.recipe.run.time_limit.ns == 0) return false;
  const double needed = 1.5 * run_.state.save_seconds + step_seconds_;
  return run_.seconds() + needed >= run_.recipe.run.time_limit.seconds();
}

}  // namespace troupe
