// What multi-token prediction modules read of whole rows (rule CX3): module d's tokens and targets
// are those of d positions on. Made before rows are cut over ranks, since the successor of a part's
// last token is another rank's.
#pragma once

#include <cstdint>
#include <vector>

#include "troupe/nn/config/batch.h"

namespace troupe {

// For d = 1 .. depth, of whole rows: at position i the id and the target of position i + d. Where
// that is beyond the row or in another document, the target does not count (-100).
std::vector<AheadTokens> ahead_of(const Batch& whole, int64_t depth);

}  // namespace troupe
