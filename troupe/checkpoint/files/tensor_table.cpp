#include "troupe/checkpoint/files/tensor_table.h"

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"

namespace troupe {
namespace {

constexpr int64_t kLongestShardIndex = int64_t{1} << 30;  // bytes: some millions of tensors

}  // namespace

const std::string& place_of(const std::string& folder, const ShardInfo& info) {
  return info.home.depth == 0 ? folder : info.home.folder;
}

std::vector<StoredTensor> read_index(const std::string& folder, const ShardInfo& info) {
  const std::string path = place_of(folder, info) + '/' + info.index;
  const std::string text = read_file(path, Code::kUnreadableCheckpoint, kLongestShardIndex);
  if (const std::string found = hex(hash64(text)); found != info.index_hash) {
    fail(Code::kDamagedCheckpoint, path, "is damaged: its checksum is", found, "and should be",
         info.index_hash);
  }
  std::vector<StoredTensor> out = parse_index(text, path);
  int64_t left = info.bytes;
  for (const StoredTensor& stored : out) {
    const TensorBox& t = stored.tensor;
    if ((left -= t.bytes()) < 0) {
      fail(Code::kDamagedCheckpoint, path, "has more tensors than the", info.bytes, "bytes of",
           info.file, "hold:", t.name, to_text(t.box.size));
    }
  }
  return out;
}

void add_slice(TensorTable& table, const StoredTensor& stored, SlicePlace place,
               const std::string& folder, const ShardInfo& info) {
  const TensorBox& t = stored.tensor;
  const int64_t depth = info.home.depth;
  if (depth > 0 && !t.name.starts_with("model.")) return;
  const WholeTensor first{t.element, t.box.global, {}, depth};
  WholeTensor& tensor = table.try_emplace(t.name, first).first->second;
  if (tensor.depth < depth) return;
  if (tensor.depth > depth) tensor = first;
  if (tensor.element != t.element || tensor.global != t.box.global) {
    fail(Code::kDamagedCheckpoint, place_of(folder, info) + '/' + info.index, "tensor", t.name,
         "is", name_of(t.element), to_text(t.box.global), "here and", name_of(tensor.element),
         to_text(tensor.global), "elsewhere");
  }
  tensor.slices.push_back({place.shard, t.box, stored.hash, stored_name(t), place.at});
}

void require_covered(const TensorTable& table, const std::string& folder) {
  for (const auto& [name, tensor] : table) {
    std::vector<Box> boxes;
    for (const WholeTensor::Slice& slice : tensor.slices) boxes.push_back(slice.box);
    if (!tiles(boxes, Box::whole(tensor.global))) {
      fail(Code::kDamagedCheckpoint, folder, "the", boxes.size(), "slices of tensor", name,
           "do not cover", to_text(tensor.global), "once each");
    }
  }
}

}  // namespace troupe
