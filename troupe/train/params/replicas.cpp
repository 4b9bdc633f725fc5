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

// Hashes tensors on their devices and copies all hashes to the host at once.
class Hashed {
 public:
  void add(const std::string& key, const at::Tensor& x) {
    keys_.push_back(key);
    bytes_.push_back(static_cast<int64_t>(x.nbytes()));
    hashes_.push_back(hash_bits(x));
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

 private:
  std::vector<std::string> keys_;
  std::vector<int64_t> bytes_;
  std::vector<at::Tensor> hashes_;
};

// The same part of every bucket: that of this rank's place among the owners.
std::string part_of(const Bucket& b) {
  const ProcessGroup& owners = *b.sharers.owners;
  return ", part " + std::to_string(owners.rank() + 1) + '/' + std::to_string(owners.size());
}

// The hash of every bucket and of every frozen tensor, grouped by the ranks that hold a copy of it.
// `each`: a hash for each tensor instead of one for a whole bucket.
Hashes hashes_of(const ParamStore& store, bool each) {
  Hashed out;
  for (const Bucket& b : store.buckets()) {
    const bool whole = !b.dropped_between_uses;
    const bool masters = b.in_halves() || b.has_master() || !whole;
    const std::string& of = b.sharers.holders;
    if (!each) {
      if (whole) out.add(of, b.value);
      for (const at::Tensor& x : b.masters()) {
        if (masters) out.add(of + part_of(b), x);
      }
      continue;
    }
    for (const int64_t s : b.members) {
      const NamedParam& named = store.slots()[static_cast<size_t>(s)].named;
      if (whole) out.add(named.name + " (" + of + ")", named.param->value);
      for (const at::Tensor& x : b.masters()) {
        if (!masters) break;
        out.add(named.name + " (master, " + of + part_of(b) + ")", store.part(s, x));
      }
    }
  }
  for (const NamedParam& other : store.others()) {
    const std::string of = store.sharers_of(other).holders;
    out.add(each ? other.name + " (" + of + ")" : of, other.param->value);
  }
  return out.take();
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

void require_equal_replicas(ParamStore& store, const ParallelState& parallel) {
  if (parallel.alone()) return;
  std::vector<int64_t> whole;
  for (size_t b = 0; b < store.buckets().size(); ++b) {
    if (!store.buckets()[b].dropped_between_uses) whole.push_back(static_cast<int64_t>(b));
  }
  store.gather(whole);
  store.need(whole);
  if (differing(parallel, hashes_of(store, /*each=*/false)).empty()) return;
  const std::map<std::string, Ways> tensors = differing(parallel, hashes_of(store, true));
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
