#include "troupe/checkpoint/state/group_of_state.h"

namespace troupe {

CheckpointGroup checkpoint_group(const ParallelState& state) {
  if (state.alone()) return {};
  return {.rank = static_cast<int>(state.rank()),
          .size = static_cast<int>(state.size()),
          .gather_texts =
              [state](const std::string& mine) {
                // A disk may stall, and no step waits for it.
                return state.all_gather_texts("checkpoint", mine,
                                              ParallelState::Patience::kWhileAlive);
              },
          .exchange_bytes = [state](const AllToAllBytes& bytes) { state.all_to_all(bytes); }};
}

}  // namespace troupe
