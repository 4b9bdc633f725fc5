#include "troupe/nn/generate.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/nn/kv_cache.h"

namespace troupe {
namespace {

c10::Device device_of(Model& model) {
  c10::Device device(c10::kCPU);
  model.for_each_param(0, [&](const std::string& name, Param& p) {
    TROUPE_CHECK(p.value.defined(), name, "has no value");
    device = p.value.device();
  });
  return device;
}

// Logits of the last token, after the cache's and `ids`.
std::vector<float> next_logits(Model& model, const std::vector<int64_t>& ids, KvCache& cache,
                               c10::Device device) {
  Batch batch{.ids_BS = at::tensor(ids, at::kLong).unsqueeze(0).to(device)};
  batch.cache = &cache;
  const at::Tensor h = hidden_states(model, batch);
  cache.advance(static_cast<int64_t>(ids.size()));
  const at::Tensor z =
      model.logits(h.select(1, h.size(1) - 1)).flatten().to(at::kFloat).cpu().contiguous();
  const auto* const data = z.const_data_ptr<float>();
  return {data, data + z.numel()};
}

}  // namespace

std::vector<int64_t> generate(Model& model, const std::vector<int64_t>& prompt,
                              const GenerateConfig& config,
                              const std::function<bool(int64_t)>& on_token, uint32_t sequence) {
  validate(config.sample);
  TROUPE_CHECK(!prompt.empty() && config.max_tokens >= 0, "a prompt of", prompt.size(),
               "tokens and max_tokens", config.max_tokens);
  const at::NoGradGuard no_grad;
  const c10::Device device = device_of(model);
  KvCache cache(model.config().layers, static_cast<int64_t>(prompt.size()) + config.max_tokens);
  std::vector<int64_t> seen = prompt, fresh = prompt, out;
  while (static_cast<int64_t>(out.size()) < config.max_tokens) {
    const std::vector<float> logits = next_logits(model, fresh, cache, device);
    const int64_t token =
        sample(logits, seen, config.sample, {static_cast<int64_t>(out.size()), sequence});
    if (std::find(config.stop.begin(), config.stop.end(), token) != config.stop.end()) break;
    out.push_back(token);
    seen.push_back(token);
    fresh = {token};
    if (on_token && !on_token(token)) break;
  }
  return out;
}

}  // namespace troupe
