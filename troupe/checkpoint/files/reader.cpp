#include "troupe/checkpoint/files/reader.h"

#include <utility>

#include "troupe/checkpoint/files/base.h"

namespace troupe {

CheckpointReader::CheckpointReader(std::string folder)
    : CheckpointReader(folder, with_base(read_manifest(folder), folder)) {}

CheckpointReader::CheckpointReader(std::string folder, Manifest manifest)
    : files_(std::move(folder), std::move(manifest)) {
  for (size_t i = 0; i < files_.manifest().shards.size(); ++i) {
    const ShardInfo& info = files_.manifest().shards[i];
    int64_t at = 0;
    for (const StoredTensor& stored : read_index(files_.folder(), info)) {
      const int64_t bytes = stored.tensor.bytes();
      add_slice(tensors_, stored, {i, std::exchange(at, at + bytes)}, files_.folder(), info);
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
