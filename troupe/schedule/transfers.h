// The second pass of every builder: sends and receives. A send follows directly the computation
// that produces the value; a receive is posted one computation before the one that uses the value,
// so that the transfer overlaps with it. Both name the chunk whose input is sent (action.h).
//   0: F0.0 S1.0>1 R1.0<1 F0.1 S1.1>1 B0.0 R1.1<1 B0.1     posted at R1.0, waited for at B0.0
//   1: R1.0<0 F1.0 R1.1<0 B1.0 S1.0>0 F1.1 B1.1 S1.1>0
// Two computations that run beside each other count as one.
#pragma once

#include "troupe/schedule/action.h"
#include "troupe/schedule/work.h"

namespace troupe {

Schedule with_transfers(Schedule computations, const StepWork& work);

}  // namespace troupe
