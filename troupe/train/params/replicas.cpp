#include "troupe/train/params/replicas.h"

#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <span>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/file/hash.h"
#include "troupe/distributed/group/rank_list.h"
#include "troupe/train/params/hash_bits.h"

namespace troupe {
namespace {

// What is compared with what: ranks that have a line of one key have the same of it.
using Hashes = std::map<std::string, uint64_t>;
using Ways = std::map<uint64_t, std::vector<int64_t>>;  // hash to ranks

// This rank's place among the ranks that have lines of one key.
struct PlaceOfCopy {
  int64_t index = 0, count = 1;
};

// Hashes tensors on their devices and copies all hashes to the host at once.
class Hashed {
 public:
  void add(const std::string& key, const PlaceOfCopy& place, const at::Tensor& x) {
    keys_.push_back(key);
    places_[key] = place;
    bytes_.push_back(static_cast<int64_t>(x.nbytes()));
    at::Tensor hash = hash_bits(x);
    // State in host memory is hashed there, and its hash goes to where the others are.
    if (!hashes_.empty()) hash = hash.to(hashes_[0].device());
    hashes_.push_back(std::move(hash));
  }
  Hashes take() const {
    if (keys_.empty()) return {};
    const at::Tensor hashes = at::stack(hashes_).cpu();
    std::map<std::string, Hasher> of;
    for (size_t i = 0; i < keys_.size(); ++i) {
      const std::array<int64_t, 2> one = {hashes.const_data_ptr<int64_t>()[i], bytes_[i]};
      of[keys_[i]].update(std::as_bytes(std::span(one)));
    }
    Hashes out;
    for (const auto& [key, hasher] : of) out[key] = hasher.digest64();
    return out;
  }
  const std::map<std::string, PlaceOfCopy>& places() const { return places_; }

 private:
  std::vector<std::string> keys_;
  std::map<std::string, PlaceOfCopy> places_;
  std::vector<int64_t> bytes_;
  std::vector<at::Tensor> hashes_;
};

// The same part of every bucket: that of this rank's place in its mesh.
std::string part_of(const Bucket& b) {
  const ProcessGroup& shard = *b.mesh.shard;
  return ", part " + std::to_string(shard.rank() + 1) + '/' + std::to_string(shard.size());
}

// Those that hold a copy, and those that have the same part of one.
PlaceOfCopy among_holders(const ShardMesh& mesh) {
  const ProcessGroup &shard = *mesh.shard, &replicate = *mesh.replicate;
  return {replicate.rank() * shard.size() + shard.rank(), replicate.size() * shard.size()};
}
PlaceOfCopy among_owners(const ShardMesh& mesh) {
  return {mesh.replicate->rank(), mesh.replicate->size()};
}

// The hash of every bucket and of every frozen tensor, grouped by the ranks that hold a copy of it.
// `differing`: instead, a hash for each tensor of these groups.
Hashed hashes_of(const ParamStore& store, const std::map<std::string, Ways>* differing) {
  Hashed out;
  const bool each = differing != nullptr;
  const auto asked = [&](const std::string& key) { return !each || differing->contains(key); };
  for (const Bucket& b : store.buckets()) {
    const bool whole = !b.dropped_between_uses;
    const bool masters = b.in_halves() || b.has_master() || !whole;
    const std::string& of = b.mesh.name;
    const bool ask_whole = whole && asked(of), ask_masters = masters && asked(of + part_of(b));
    const PlaceOfCopy holder = among_holders(b.mesh), owner = among_owners(b.mesh);
    if (!each) {
      if (whole) out.add(of, holder, b.value);
      for (const at::Tensor& x : b.masters()) {
        if (masters) out.add(of + part_of(b), owner, x);
      }
      continue;
    }
    for (const int64_t s : b.members) {
      const NamedParam& named = store.slots()[static_cast<size_t>(s)].named;
      if (ask_whole) out.add(named.name + " (" + of + ")", holder, named.param->value);
      for (const at::Tensor& x : b.masters()) {
        if (!ask_masters) break;
        out.add(named.name + " (master, " + of + part_of(b) + ")", owner, store.part(s, x));
      }
    }
  }
  for (const NamedParam& other : store.others()) {
    const ShardMesh mesh = store.mesh_of(other);
    const std::string& of = mesh.name;
    if (!asked(of)) continue;
    for (const at::Tensor& x : other.param->stored()) {
      out.add(each ? other.name + " (" + of + ")" : of, among_holders(mesh), x);
    }
  }
  return out;
}

// One sum over all ranks, of four numbers however many buckets and ranks there are. Where copies
// differ it says so but once in 2^63; if it says so, texts must tell whether and where.
bool may_differ(const ParallelState& parallel, const Hashed& hashed) {
  uint64_t own = 0;
  for (const auto& [key, hash] : hashed.take()) {
    const PlaceOfCopy place = hashed.places().at(key);
    own += term_of_copy(key, place.index, place.count, hash);
  }
  constexpr int kPieces = 4, kBits = 16;  // so that sums of doubles are exact
  std::vector<double> pieces;
  for (int i = 0; i < kPieces; ++i) {
    pieces.push_back(static_cast<double>((own >> (kBits * i)) & 0xffff));
  }
  pieces = parallel.all_reduce(std::move(pieces));
  uint64_t sum = 0;
  for (int i = 0; i < kPieces; ++i) {
    sum += static_cast<uint64_t>(pieces[static_cast<size_t>(i)]) << (kBits * i);
  }
  return sum != 0;
}

// The texts of all, in rank order: over the group, since a checkpoint's thread may be at the board.
std::vector<std::string> gathered(const ParallelState& parallel, const std::string& mine) {
  std::vector<double> sizes(static_cast<size_t>(parallel.size()));
  sizes[static_cast<size_t>(parallel.rank())] = static_cast<double>(mine.size());
  sizes = parallel.all_reduce(std::move(sizes));
  const auto longest = static_cast<int64_t>(*std::max_element(sizes.begin(), sizes.end()));
  const at::Tensor own = at::zeros({longest}, at::kByte);
  const at::Tensor all = at::zeros({parallel.size() * longest}, at::kByte);
  std::memcpy(own.mutable_data_ptr(), mine.data(), mine.size());
  parallel.world().processors()->all_gather({all}, {own}).wait();
  const auto* const bytes = static_cast<const char*>(all.const_data_ptr());
  std::vector<std::string> out;
  for (size_t r = 0; r < sizes.size(); ++r) {
    out.emplace_back(bytes + static_cast<int64_t>(r) * longest, static_cast<size_t>(sizes[r]));
  }
  return out;
}

// By key, where the ranks that have it do not agree.
std::map<std::string, Ways> differing(const ParallelState& parallel, const Hashes& mine) {
  std::string text;
  for (const auto& [key, hash] : mine) text += hex(hash) + ' ' + key + '\n';
  const std::vector<std::string> all = gathered(parallel, text);
  std::map<std::string, Ways> out;
  for (size_t r = 0; r < all.size(); ++r) {
    std::istringstream lines(all[r]);
    for (std::string line; std::getline(lines, line);) {
      uint64_t hash = 0;
      const size_t space = line.find(' ');
      TROUPE_CHECK(space != std::string::npos && from_hex(line.substr(0, space), hash), "-", line);
      out[line.substr(space + 1)][hash].push_back(static_cast<int64_t>(r));
    }
  }
  std::erase_if(out, [](const auto& entry) { return entry.second.size() == 1; });
  return out;
}

std::string who_has_what(const Ways& ways) {
  std::string out;
  for (const auto& [hash, ranks] : ways) {
    if (!out.empty()) out += "; ";
    out += "rank(s) " + rank_list(ranks) + ": hash " + hex(hash);
  }
  return out;
}

}  // namespace

uint64_t term_of_copy(const std::string& key, int64_t index, int64_t count, uint64_t hash) {
  const auto drawn = [&](int64_t i) { return hash64(key + '#' + std::to_string(i)) | 1; };
  if (index > 0) return drawn(index) * hash;
  uint64_t others = 0;
  for (int64_t i = 1; i < count; ++i) others += drawn(i);
  return (0 - others) * hash;
}

void require_equal_replicas(ParamStore& store, const ParallelState& parallel) {
  if (parallel.alone()) return;
  std::vector<int64_t> whole;
  for (size_t b = 0; b < store.buckets().size(); ++b) {
    if (!store.buckets()[b].dropped_between_uses) whole.push_back(static_cast<int64_t>(b));
  }
  store.gather(whole);
  store.need(whole);
  const Hashed hashed = hashes_of(store, nullptr);
  if (!may_differ(parallel, hashed)) return;
  const std::map<std::string, Ways> groups = differing(parallel, hashed.take());
  if (groups.empty()) return;
  const std::map<std::string, Ways> tensors = differing(parallel, hashes_of(store, &groups).take());
  const std::string place = tensors.empty() ? "weights" : tensors.begin()->first;
  if (parallel.rank() > 0) {
    fail(Code::kBrokenContract, place,
         "differs between ranks that hold the same; rank 0 tells how");
  }
  fail(Code::kBrokenContract, place, "differs between ranks that hold the same, as do",
       tensors.empty() ? 0 : tensors.size() - 1, "other tensors -",
       tensors.empty() ? "in what is between parameters" : who_has_what(tensors.begin()->second),
       "- memory or a device has failed on the rank that is alone with its bits, or the program "
       "has; this step is not saved. The same command resumes from the checkpoint before");
}

}  // namespace troupe
