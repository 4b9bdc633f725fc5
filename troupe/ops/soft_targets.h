// What a loss learns from beside its targets: a teacher's distribution over the words.
//
//   p_t = softmax(teacher's logits_t / temperature), q_t = softmax(logits_t / temperature)
//   kl = sum_t weight_t KL(p_t || q_t) over the targets that count
//   loss = (1 - weight) ce + weight temperature^2 kl
//
// ce is the loss without a teacher: cross entropy with its z-loss, weighted and summed over the same
// targets. With `top` > 0 p_t is of the teacher's words whose logits are not below its `top`-th
// largest, and the others have probability 0; q_t is of all words in any case. Logits are finite.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>

namespace troupe {

struct SoftTargets {
  // The teacher's logits [count, V] of tokens from, from + 1, .., in any floating type.
  std::function<at::Tensor(int64_t from, int64_t count)> logits;
  double weight = 0.5;  // 0: kl is measured, and the gradient has the bits of one without a teacher
  double temperature = 1;
  int64_t top = 0;  // 0: all words
};

}  // namespace troupe
