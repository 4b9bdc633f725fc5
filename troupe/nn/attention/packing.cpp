#include "troupe/nn/attention/packing.h"

#include <ATen/ops/empty.h>

#include "troupe/core/check.h"

namespace troupe {

Packing packing_of(const at::Tensor& documents_BS, const at::Tensor& positions_BS,
                   c10::Device device) {
  Packing out;
  out.positions_BS = positions_BS;
  if (!documents_BS.defined()) return out;
  TROUPE_CHECK(documents_BS.dim() == 2 && documents_BS.scalar_type() == at::kInt,
               "documents must be int32 [B, S]; they are", documents_BS.scalar_type(),
               documents_BS.sizes());
  const at::Tensor host = documents_BS.cpu().contiguous();
  const int64_t B = host.size(0), S = host.size(1);
  const at::Tensor places = at::empty({B, S}, at::kLong);
  const auto* const document = host.const_data_ptr<int32_t>();
  auto* const place = places.mutable_data_ptr<int64_t>();
  for (int64_t t = 0; t < B * S; ++t) {
    const bool begins = t % S == 0 || document[t] != document[t - 1];
    TROUPE_CHECK(t % S == 0 || document[t] >= document[t - 1], "document", document[t], "follows",
                 document[t - 1], "in row", t / S);
    if (begins) out.lengths.push_back(0);
    place[t] = out.lengths.back()++;
  }
  if (static_cast<int64_t>(out.lengths.size()) == B) {
    out.lengths.clear();  // no row is divided
  } else if (!positions_BS.defined()) {
    out.positions_BS = places.to(device);
  }
  return out;
}

}  // namespace troupe
