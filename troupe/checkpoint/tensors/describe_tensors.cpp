#include "troupe/checkpoint/tensors/describe_tensors.h"

namespace troupe {

TensorsSummary describe_tensors(const TensorSet& set, bool values) {
  TensorsSummary out{
      .kind = std::string(set.kind()), .path = set.place(), .warnings = set.warnings()};
  if (set.manifest() != nullptr && set.manifest()->base) out.base = set.manifest()->base->folder;
  std::map<std::string, TypeTotal> types;
  for (const auto& [name, tensor] : set.tensors()) {
    TensorRow row{
        .name = name, .dtype = std::string(name_of(tensor.element)), .shape = tensor.shape};
    if (values) row.unsound = count_unsound(tensor.element, set.read(name));
    TypeTotal& total = types[row.dtype];
    total.dtype = row.dtype;
    ++total.tensors;
    total.elements += tensor.numel();
    total.bytes += tensor.bytes();
    out.elements += tensor.numel();
    out.bytes += tensor.bytes();
    out.unsound += row.unsound;
    out.tensors.push_back(std::move(row));
  }
  for (auto& [name, total] : types) out.types.push_back(std::move(total));
  return out;
}

}  // namespace troupe
