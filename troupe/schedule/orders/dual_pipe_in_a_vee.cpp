#include <algorithm>

#include "troupe/schedule/orders/vee_list.h"

namespace troupe {

std::vector<StageStep> dual_pipe_in_a_vee(const Pipeline& pipeline, int rank) {
  const int behind = pipeline.ranks - 1 - rank, from_first = rank + 1;
  // For fewer microbatches the order is that of so many, less those that do not exist.
  const int all = std::max(2 * pipeline.ranks, pipeline.microbatches);
  constexpr int kDown = VeeList::kDown, kUp = VeeList::kUp;
  VeeList list(pipeline, rank);
  for (int i = 0; i < 2 * behind; ++i) list.forward(kDown);
  for (int i = 0; i < from_first; ++i) {
    list.forward(kDown);
    list.forward(kUp);
  }
  // The first gradients come up: W at once, while the next forward is on its way.
  for (int i = 0; i < behind; ++i) {
    list.input(kUp);
    list.weight();
    list.forward(kUp);
  }
  // Pairs of a forward and a backward of two microbatches.
  for (int i = 0; i < all - 2 * pipeline.ranks + from_first; ++i) {
    list.forward(kDown);
    list.backward(kUp);
    list.forward(kUp);
    list.backward(kDown);
  }
  for (int i = 0; i < behind; ++i) {
    list.backward(kUp);
    list.forward(kUp);
    list.backward(kDown);
  }
  // Nothing goes forward any more: the later half of these put W off to where the rank would wait.
  for (int i = 0; i < 2 * from_first; ++i) {
    const int way = i % 2 == 0 ? kUp : kDown;
    if (i < from_first) {
      list.backward(way);
    } else {
      list.input(way);
    }
  }
  for (int i = 0; i < behind; ++i) {
    list.weight();
    list.input(kDown);
  }
  while (list.owes(kUp) || list.owes(kDown)) list.weight();
  return std::move(list).take(pipeline.microbatches);
}

}  // namespace troupe
