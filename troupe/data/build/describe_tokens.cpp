#include "troupe/data/build/describe_tokens.h"

#include <algorithm>
#include <limits>
#include <unordered_set>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/data/tokens/token_file.h"

namespace troupe {
namespace {

// The number of different ids without a table of 2^31: those of a usual vocabulary as flags.
class Distinct {
 public:
  void add(int32_t id) {
    if (id < kFlags) {
      flags_[static_cast<size_t>(id)] = true;
    } else {
      others_.insert(id);
    }
  }
  int64_t count() const {
    return std::ranges::count(flags_, true) + static_cast<int64_t>(others_.size());
  }

 private:
  static constexpr int32_t kFlags = 1 << 20;
  std::vector<bool> flags_ = std::vector<bool>(kFlags);
  std::unordered_set<int32_t> others_;
};

TokenScan scan_all(const TokenFile& file, int64_t vocab) {
  constexpr int64_t kBlock = 1 << 20;
  TokenScan out{.smallest = std::numeric_limits<int32_t>::max()};
  Distinct distinct;
  std::vector<int32_t> ids;
  std::vector<float> weights;
  for (int64_t at = 0; at < file.num_tokens(); at += kBlock) {
    ids.resize(static_cast<size_t>(std::min(kBlock, file.num_tokens() - at)));
    file.read(at, ids);
    require_below(ids, vocab, file, at);
    const auto [least, most] = std::ranges::minmax(ids);
    out.smallest = std::min<int64_t>(out.smallest, least);
    out.largest = std::max<int64_t>(out.largest, most);
    for (const int32_t id : ids) distinct.add(id);
    out.learned += std::ssize(ids);
    if (!file.has_weights()) continue;
    weights.resize(ids.size());
    file.read_weights(at, weights);
    out.learned -= std::ranges::count(weights, 0.0f);
  }
  if (file.num_tokens() == 0) out.smallest = 0;
  out.distinct = distinct.count();
  return out;
}

void require_counts(const TokenSummary& s, const BuildInfo& info) {
  if (info.tokens == s.tokens && info.documents == s.documents) return;
  fail(Code::kBadTokenFile, s.path + ".json", "names", info.documents, "documents and", info.tokens,
       "tokens, the index", s.documents, "and", s.tokens, ": the files are not of one build");
}

}  // namespace

TokenSummary describe_tokens(const std::string& path, bool scan, const Log& log) {
  const TokenFile file(path, log);
  const TokenIndex& index = file.index();
  TokenSummary out{.path = token_prefix(path),
                   .type = std::string(name(index.type())),
                   .documents = index.num_documents(),
                   .sequences = index.num_sequences(),
                   .empty = index.num_empty(),
                   .tokens = index.num_tokens(),
                   .bytes = index.num_tokens() * size_bytes(index.type()),
                   .contiguous = index.is_contiguous(),
                   .modes = index.has_modes(),
                   .weights = file.has_weights()};
  std::vector<int32_t> lengths(static_cast<size_t>(out.sequences));
  index.lengths(0, lengths);
  if (!lengths.empty()) {
    const auto middle = lengths.begin() + out.sequences / 2;
    std::nth_element(lengths.begin(), middle, lengths.end());
    out.median = *middle;
    out.shortest = std::ranges::min(lengths);
    out.longest = std::ranges::max(lengths);
  }
  out.built = read_build_info(out.path);
  if (out.built) require_counts(out, *out.built);
  if (scan) {
    const bool known = out.built && out.built->vocab > 0;
    out.scan = scan_all(file, known ? out.built->vocab : std::numeric_limits<int32_t>::max());
  }
  return out;
}

}  // namespace troupe
