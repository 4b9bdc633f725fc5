#include "troupe/checkpoint/files/reader.h"

#include <utility>

namespace troupe {

CheckpointReader::CheckpointReader(std::string folder)
    : CheckpointReader(folder, read_manifest(folder)) {}

CheckpointReader::CheckpointReader(std::string folder, Manifest manifest)
    : files_(std::move(folder), std::move(manifest)) {
  for (size_t i = 0; i < files_.manifest().shards.size(); ++i) {
    const ShardInfo& info = files_.manifest().shards[i];
    for (const StoredTensor& stored : read_index(files_.folder(), info)) {
      add_slice(tensors_, stored, i, files_.folder() + '/' + info.index);
    }
  }
  require_covered(tensors_, files_.folder());
}

const CheckpointReader::Tensor* CheckpointReader::find(std::string_view name) const {
  const auto at = tensors_.find(name);
  return at == tensors_.end() ? nullptr : &at->second;
}

int64_t CheckpointReader::read(const Tensor& tensor, const std::string& name, const Box& box,
                               std::span<std::byte> out, const Faults& faults) const {
  const TensorBox wanted{name, tensor.element, box};
  int64_t bytes = 0;
  for (const Tensor::Slice& slice : tensor.slices) {
    Box part;
    if (overlap(slice.box, box, part)) bytes += files_.read_slice(wanted, slice, out, faults);
  }
  return bytes;
}

}  // namespace troupe
