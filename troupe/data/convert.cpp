#include "troupe/data/convert.h"

#include <algorithm>
#include <limits>
#include <memory>

#include "troupe/data/token_file.h"

namespace troupe {
namespace {

// Sequence by sequence, in blocks of tokens, so that one of 2^31 needs no more memory than another.
class Copier {
 public:
  Copier(const TokenFile& from, TokenWriter& to) : from_(from), to_(to) {}

  void run() {
    constexpr int64_t kBlock = 1 << 16;
    const int64_t documents = from_.index().num_documents();
    std::vector<int64_t> bounds;
    for (int64_t first = 0; first < documents; first += kBlock) {
      bounds.resize(static_cast<size_t>(std::min(kBlock, documents - first) + 1));
      from_.index().documents(first, bounds);
      for (size_t d = 0; d + 1 < bounds.size(); ++d) {
        for (int64_t s = bounds[d]; s < bounds[d + 1]; ++s) copy_sequence(s);
        to_.end_document();
      }
    }
  }

 private:
  void copy_sequence(int64_t sequence) {
    constexpr int64_t kBlock = 1 << 20;
    int64_t bounds[2];
    from_.starts(sequence, bounds);
    for (int64_t at = bounds[0]; at < bounds[1]; at += kBlock) {
      ids_.resize(static_cast<size_t>(std::min(kBlock, bounds[1] - at)));
      from_.read(at, ids_);
      require_below(ids_, std::numeric_limits<int32_t>::max(), from_,
                    at);  // 8-byte ids may not fit.
      weights_.clear();
      if (from_.has_weights()) {
        std::vector<float> floats(ids_.size());
        from_.read_weights(at, floats);
        weights_.assign(floats.begin(), floats.end());
      }
      to_.add_tokens(ids_, weights_);
    }
    to_.end_sequence();
  }

  const TokenFile& from_;
  TokenWriter& to_;
  std::vector<int32_t> ids_;
  std::vector<uint8_t> weights_;
};

}  // namespace

TokenCounts merge_tokens(Fs& fs, const std::vector<std::string>& prefixes,
                         const std::string& output, bool replace, const Log& log) {
  TROUPE_CHECK(!prefixes.empty(), "nothing to merge");
  std::vector<std::unique_ptr<TokenFile>> files;
  for (const std::string& prefix : prefixes) {
    files.push_back(std::make_unique<TokenFile>(prefix, log));
    const TokenFile &first = *files[0], &file = *files.back();
    if (file.index().type() != first.index().type()) {
      fail(Code::kBadTokenFile, file.place(), "has tokens of type", name(file.index().type()), ";",
           first.place(), "of", name(first.index().type()));
    }
    if (file.has_weights() != first.has_weights()) {
      fail(Code::kBadTokenFile, file.place(), "and", first.place(),
           ": one has weights and one has none");
    }
  }
  TokenWriter writer(fs, {.prefix = output,
                          .type = files[0]->index().type(),
                          .weights = files[0]->has_weights(),
                          .replace = replace});
  for (const auto& file : files) Copier(*file, writer).run();
  writer.publish();
  return writer.counts();
}

}  // namespace troupe
