// The flags of Megatron-LM that say how a run goes, not what is trained: layout, recomputation,
// data, checkpoints, evaluation, log.
#pragma once

#include "troupe/train/recipe/foreign/flags.h"

namespace troupe {

void convert_megatron_run(Flags& flags, Draft& draft);

}  // namespace troupe
