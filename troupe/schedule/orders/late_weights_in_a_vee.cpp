#include <algorithm>

#include "troupe/schedule/orders/vee_list.h"

namespace troupe {

std::vector<StageStep> late_weights_in_a_vee(const Pipeline& pipeline, int rank) {
  const int from_turn = pipeline.ranks - rank;  // this rank and those behind it
  // For fewer microbatches the order is that of so many, less those that do not exist.
  const int all = std::max(2 * pipeline.ranks - 1, pipeline.microbatches);
  constexpr int kDown = VeeList::kDown, kUp = VeeList::kUp;
  VeeList list(pipeline, rank);
  const auto both = [&](int way) {
    list.input(way);
    list.weight(way);
  };
  for (int i = 0; i < 2 * from_turn - 1; ++i) list.forward(kDown);
  for (int i = 0; i < rank; ++i) {
    list.forward(kUp);
    list.forward(kDown);
  }
  for (int i = 0; i < from_turn; ++i) {
    list.forward(kUp);
    both(kUp);
  }
  while (list.forwards(kUp) < list.forwards(kDown) || list.forwards(kDown) < all) {
    if (list.forwards(kDown) < all) list.forward(kDown);
    both(kDown);
    list.forward(kUp);
    both(kUp);
  }
  for (int i = 0; i < rank; ++i) {
    list.input(kDown);
    list.input(kUp);
  }
  for (int i = 0; i < from_turn; ++i) both(kDown);
  for (const int way : {kUp, kDown}) {
    while (list.owes(way)) list.weight(way);
  }
  return std::move(list).take(pipeline.microbatches);
}

}  // namespace troupe
