// Checkpoints of other programs: recognized, never misread, and nothing with a pickle opened.
#pragma once

#include <string>

namespace troupe {

// Throws E4007 with a hint if the folder holds a checkpoint of torch.distributed.checkpoint, of
// Megatron-LM (either format) or of MegaBlocks; returns for anything else.
void refuse_foreign(const std::string& folder);

// The same if its weights are pickles (.pt, .pth, .bin) and none are safetensors.
void refuse_pickles(const std::string& folder);

}  // namespace troupe
