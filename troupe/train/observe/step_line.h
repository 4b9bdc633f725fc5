// The line that a step prints, and Megatron-LM's for those whose tools read that one.
//   step 1200/20000  loss 3.412  lr 2.98e-04  gnorm 0.83  tok/s 181.4k  mfu 41.2%
//   mem 61.3/80.0G  data 0.4%  load 1.31 dead 0 drop 0.0%  eta 2h14m          (all one line)
#pragma once

#include <array>
#include <string>

#include "troupe/core/config/span.h"
#include "troupe/core/text/text.h"
#include "troupe/train/observe/record.h"

namespace troupe {

enum class LineFormat { kTroupe, kMegatron };
constexpr auto names_of(LineFormat) {
  return std::array{Named{"troupe", LineFormat::kTroupe}, Named{"megatron", LineFormat::kMegatron}};
}

// Shows the scalars that the record has: loss, lr, grad_norm, tokens_s, mfu, data_wait,
// moe/load, moe/dead, moe/dropped, skipped, loss_scale, ... `run` is how long the whole run is.
// A record with `forced` (R3) makes every line end in FORCED: its speed is no training speed.
std::string step_line(LineFormat format, const LogRecord& record, const Position& now,
                      const Position& run);

// What of that fits into `columns` of a terminal, for a line that is rewritten in place:
//   step 126/420  30%  loss 3.41  lr 2.98e-04  gnorm 0.83  tok/s 7.6k  load 1.31  eta 1m12s
std::string live_line(const LogRecord& record, const Position& now, const Position& run,
                      int columns);

std::string fixed(double value, int digits);  // 0.50
std::string seconds_text(double seconds);     // 12.3 ms, 1.23 s, 123 s
std::string short_number(double value);       // 181.4k, 2.08M
std::string short_time(double seconds);       // 2h14m, 3m05s, 12s

}  // namespace troupe
