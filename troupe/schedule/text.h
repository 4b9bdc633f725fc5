// The one text form of schedules, for messages and golden tests. A line a rank:
//   0: F0.0 F1.0 S2.0>1 R2.0<1 B1.0@4 B0.0 U
//   0: G1 F0.0 F1.0 B1.0 X1 A1.0 ...   A1.0 reduces what microbatch 0 added, A1 the whole step's
// letter, chunk, ".microbatch", ">peer" or "<peer", "@" and the positions that it waits for; "&" if
// it runs beside the next one.
#pragma once

#include <string>

#include "troupe/schedule/action.h"

namespace troupe {

std::string to_text(const Action& action);
std::string to_text(const Schedule& schedule);

}  // namespace troupe
