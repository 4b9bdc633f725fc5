// Ranks that hold the same weights hold the same bits: looked at before a checkpoint or every so
// often (run.check_replicas), by hashes that each device makes of what it has (hash_bits.h).
//
// Values that lie whole on several ranks, what is not trained (frozen weights, the routers' state),
// and the masters of those that own the same part; not the optimizer's moments. A bit
// that memory, a device or a fault of the program has changed on one rank of several would else be
// in every sum from then on, and in the checkpoint of whoever writes that part.
#pragma once

#include "troupe/train/params/param_store.h"
#include "troupe/train/ranks.h"

namespace troupe {

// Each rank calls, with no step under way. Throws E9001 on all ranks; rank 0's names the tensor and
// which ranks have what.
void require_equal_replicas(ParamStore& store, Ranks& ranks);

}  // namespace troupe
