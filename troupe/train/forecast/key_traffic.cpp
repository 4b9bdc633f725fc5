#include "troupe/train/forecast/key_traffic.h"

#include <algorithm>

namespace troupe {

int64_t exchanged_width(const ModelConfig& m, const LayerConfig& l, int64_t tensor) {
  if (!l.attention) return 0;
  if (m.mla) return m.mla->kv_rank + m.mla->rope_dim;
  return 2 * std::max<int64_t>(l.kv_heads / tensor, 1) * l.head_dim;
}

double keys_from_others(const Recipe& r, int64_t micro_batch, const LayerConfig& l) {
  const auto ranks = static_cast<double>(r.parallel.context);
  if (r.parallel.context <= 1 || !l.attention) return 0;
  const auto rows = static_cast<double>(micro_batch);
  const auto sequence = static_cast<double>(r.data.sequence);
  const double whole = sequence * (ranks - 1) / ranks;
  if (l.window == 0 || r.model.mla) return rows * whole;
  return rows * std::min(whole, 2.0 * static_cast<double>(l.window - 1));
}

double numbers_exchanged(const Recipe& r, int64_t micro_batch, const LayerConfig& l,
                         int64_t tensor) {
  const auto ranks = static_cast<double>(r.parallel.context);
  if (r.parallel.context <= 1 || !l.attention) return 0;
  if (r.parallel.context_method != ContextMethod::kHeads) {
    return keys_from_others(r, micro_batch, l) *
           static_cast<double>(exchanged_width(r.model, l, tensor));
  }
  const double own = static_cast<double>(micro_batch * r.data.sequence) / ranks;
  const int64_t columns = 2 * (l.heads + l.kv_heads) / tensor * l.head_dim;
  return own * (ranks - 1) / ranks * static_cast<double>(columns);
}

int64_t made_of_latents(const ModelConfig& m, const LayerConfig& l, int64_t tensor) {
  if (!l.attention || !m.mla) return 0;
  return l.heads / tensor * (m.mla->nope_dim + m.mla->value_dim);
}

}  // namespace troupe
