// The dispatcher of one process: no transport, the source buffer is x itself.
//
// With a placement over W > 1 ranks it simulates W ranks that share the experts of these tokens, as
// the oracle for the dispatchers that have a transport: source rows are (rank, token), each rank's
// partial output of a token is rounded to x's type, and the parts are added in rank order, in f32,
// rounded once. The order of rows is that of one rank, (expert, token, k). Replicas are chosen as
// everywhere, by the token's index. Slices of experts (H2) have no meaning here and are refused.
#pragma once

#include "troupe/distributed/dispatch/dispatcher.h"

namespace troupe {

std::unique_ptr<Dispatcher> local_dispatcher(int64_t experts);
std::unique_ptr<Dispatcher> virtual_ranks_dispatcher(const ExpertPlacement& placement);

}  // namespace troupe
