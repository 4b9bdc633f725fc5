#include "troupe/train/sample.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/topk.h>

#include <algorithm>
#include <vector>

#include "troupe/core/number/rng.h"

namespace troupe {
namespace {

TokenId choose(const at::Tensor& logits_V, const SampleOptions& options, int64_t n) {
  const at::Tensor logits = logits_V.cpu();
  if (options.temperature == 0) return static_cast<TokenId>(logits.argmax().item<int64_t>());
  at::Tensor kept = logits, ids;
  if (options.top_k > 0 && options.top_k < logits.size(0)) {
    std::tie(kept, ids) = at::topk(logits, options.top_k);
  }
  const at::Tensor sums = at::cumsum(at::softmax(kept.to(at::kDouble) / options.temperature, 0), 0);
  const Rng rng(options.seed, stream_of("sample"));
  const double draw = rng.uniform(static_cast<uint64_t>(n)) * sums[-1].item<double>();
  const int64_t at =
      std::min(at::searchsorted(sums, draw, false, true).item<int64_t>(), sums.size(0) - 1);
  return static_cast<TokenId>(ids.defined() ? ids[at].item<int64_t>() : at);
}

}  // namespace

std::string sample(Learner& learner, const Tokenizer& tokenizer, const std::string& prompt,
                   const SampleOptions& options) {
  std::vector<TokenId> ids = tokenizer.encode(prompt);
  if (ids.empty()) ids.push_back(std::max<TokenId>(tokenizer.special().bos, 0));
  for (int64_t n = 0; n < options.tokens; ++n) {
    const size_t seen = std::min(ids.size(), static_cast<size_t>(options.window));
    const std::vector<int64_t> last(ids.end() - static_cast<int64_t>(seen), ids.end());
    const at::Tensor input = at::tensor(last, at::kLong).view({1, -1}).to(learner.device());
    const TokenId next = choose(learner.next_logits(input), options, n);
    if (next == tokenizer.special().eos) break;
    ids.push_back(next);
  }
  return tokenizer.decode(ids, {.skip_special = true});
}

}  // namespace troupe
