// Which rank reads which stored slice, where no rank knows all tensors or what all ranks want. Each
// name has a home, the rank hash(name) mod N. In three exchanges of texts, each rank's to each:
//
//   ask     a rank reads its share of the index files, and sends each line to the home of its
//           tensor; and each of its wants to the home of that
//   answer  the home has all slices of its tensors and all that is wanted of them. It sees that the
//           slices cover their tensor once, and tells who asked the type, the size, and the slices
//           that it alone needs something of; one of those that need a slice, the reader, whose
//           cuts of it to send; and rank 0 what nobody wants
//   offer   a reader tells the others what it sends them, in which round
//
// So each index file is read by one rank, each slice by one of those that need it, and a rank sends
// and keeps what its share of the files and its wants are, not what all ranks' are. Plain
// arithmetic: load() moves the texts (exchange_texts), tests play all ranks in one thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/checkpoint/files/box.h"
#include "troupe/checkpoint/files/manifest.h"
#include "troupe/checkpoint/files/tensor_table.h"

namespace troupe {

// A box that a rank holds of the tensor of that name.
struct Want {
  std::string name;
  Box box;
};

// What a rank does of a load.
struct LoadPlan {
  using Slice = WholeTensor::Slice;
  struct Part {
    bool stored = false;  // the checkpoint has the name; `global` may be another size than wanted
    bool based = false;   // its base has it
    Element element{};
    Sizes global = {};
    std::vector<Slice> alone = {};  // that no other want needs: read for this part
    size_t cuts = 0;                // that come from readers, this rank among them
  };
  // What a want of a rank has of a shared slice.
  struct Cut {
    int rank = 0;
    size_t want = 0;
    Box box = {};
  };
  struct Read {
    size_t want = 0;  // of this rank, that needs the slice too
    Slice slice = {};
    std::vector<Cut> cuts = {};  // two or more, by rank and want
  };
  struct Sent {
    int from = 0;
    size_t want = 0;
    Box box = {};
  };
  struct Unused {
    std::string name;
    Element element{};
    Sizes global = {};
  };

  std::vector<Part> parts = {};               // by want
  std::vector<std::vector<Read>> reads = {};  // by round
  std::vector<std::vector<Sent>> sent = {};   // by round; by rank, in the order of its reads
  std::vector<Unused> unused = {};            // of the checkpoint's own, by name; on rank 0 alone
};

using TextsOfRanks = std::vector<std::string>;

// A line of an index file, with its place.
struct PlacedSlice {
  size_t shard = 0;  // of the manifest
  int64_t at = 0;    // bytes of the shard's data before the slice
  StoredTensor stored = {};
};

// The shards whose index files a rank reads: consecutive ones, those of each rank about a N-th of
// all bytes, so that a rank of a save that is loaded by as many ranks reads its own.
std::vector<size_t> share_of(const std::vector<ShardInfo>& shards, int rank, int size);
std::vector<PlacedSlice> read_share(const std::string& folder, const std::vector<ShardInfo>& shards,
                                    int rank, int size);

TextsOfRanks ask(const std::vector<PlacedSlice>& lines, const std::vector<Want>& wants, int size);

class TensorHome {
 public:
  TensorHome(std::string folder, const std::vector<ShardInfo>& shards, int size);

  // Throws E4004 where slices of a tensor differ in type or size, or do not cover it once.
  void take(const TextsOfRanks& asked);
  TextsOfRanks answer() const;

 private:
  // Its rank where as many ranks saved as load: what a rank wrote it reads again, and so the header
  // of its own shards. Else the ranks take turns, 64 MiB of a shard at a time.
  int reader_of(const std::vector<LoadPlan::Cut>& cuts, size_t shard, int64_t at) const;
  void answer_tensor(const WholeTensor& tensor, const std::string& name,
                     TextsOfRanks& answers) const;

  const std::string folder_;
  const std::vector<ShardInfo>& shards_;
  const int size_;
  std::map<std::string, bool, std::less<>> by_writer_;  // by a shard's home folder; "": own
  TensorTable table_;
  std::map<std::string, std::vector<LoadPlan::Cut>, std::less<>> wants_;  // whole boxes
};

// The parts, and the reads in rounds of `round_bytes` at most, or one slice.
LoadPlan plan_of(const std::vector<Want>& wants, const TextsOfRanks& answers, int64_t round_bytes);
TextsOfRanks offer(const LoadPlan& plan, int size);
// All ranks have as many rounds then.
void take_offers(LoadPlan& plan, const std::vector<Want>& wants, const TextsOfRanks& offers);

}  // namespace troupe
