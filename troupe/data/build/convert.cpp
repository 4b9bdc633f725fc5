#include "troupe/data/build/convert.h"

#include <algorithm>
#include <limits>
#include <memory>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/data/text/build_info.h"
#include "troupe/data/tokens/token_file.h"

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

// Refuses preference pairs together with other documents; a set that says nothing has no pairs.
void require_pairs_alike(const std::vector<std::string>& prefixes) {
  const auto has_pairs = [](const std::string& prefix) {
    const std::optional<BuildInfo> info = read_build_info(token_prefix(prefix));
    return info && info->pairs;
  };
  const bool pairs = has_pairs(prefixes[0]);
  for (const std::string& prefix : prefixes) {
    if (has_pairs(prefix) == pairs) continue;
    fail(Code::kBadTokenFile, token_prefix(prefix),
         pairs ? "holds no preference pairs, and" : "holds preference pairs, and",
         token_prefix(prefixes[0]), pairs ? "does" : "does not", "; merge them apart");
  }
}

// What all the inputs say of how they were made, summed up; nothing where one of them is silent.
std::optional<BuildInfo> joined_info(const std::vector<std::string>& prefixes) {
  require_pairs_alike(prefixes);
  std::optional<BuildInfo> out;
  for (const std::string& prefix : prefixes) {
    const std::optional<BuildInfo> info = read_build_info(token_prefix(prefix));
    if (!info) return std::nullopt;
    if (!out) {
      out = info;
      continue;
    }
    if (info->tokenizer != out->tokenizer || info->vocab != out->vocab) {
      fail(Code::kOtherTokenizer, token_prefix(prefix) + ".json", "tokenizer", info->tokenizer,
           "with", info->vocab, "ids made these tokens,", out->tokenizer, "with", out->vocab,
           "those of", token_prefix(prefixes[0]));
    }
    out->documents += info->documents;
    out->tokens += info->tokens;
    out->skipped += info->skipped;
    if (info->chat != out->chat) out->chat.reset();
    if (info->model_template != out->model_template) out->model_template.reset();
  }
  return out;
}

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
  const std::optional<BuildInfo> info = joined_info(prefixes);
  TokenWriter writer(fs, {.prefix = output,
                          .type = files[0]->index().type(),
                          .weights = files[0]->has_weights(),
                          .replace = replace});
  for (const auto& file : files) Copier(*file, writer).run();
  if (info) {
    std::ostringstream text;
    write_json(text, *info);
    publish_file(fs, output + ".json", text.str() + '\n');
  }
  writer.publish();
  return writer.counts();
}

TokenCounts convert_ids(const IdsConfig& config, Fs& fs, const Log& log) {
  const TokenSourcePtr source = open(config.input, {.log = log});
  const int64_t limit =
      config.vocab > 0 ? config.vocab : int64_t{std::numeric_limits<int32_t>::max()};
  TokenWriter writer(fs, {.prefix = config.output,
                          .type = config.vocab > 0 ? token_type_for(config.vocab) : TokenType::kI32,
                          .replace = config.replace});
  constexpr int64_t kBlock = 1 << 20;
  std::vector<int32_t> ids;
  bool is_open = false;
  const auto end = [&] {
    writer.end_sequence();
    writer.end_document();
    is_open = false;
  };
  for (int64_t at = 0; at < source->num_tokens(); at += kBlock) {
    ids.resize(static_cast<size_t>(std::min(kBlock, source->num_tokens() - at)));
    source->read(at, ids);
    require_below(ids, limit, *source, at);
    for (std::span<const int32_t> rest(ids); !rest.empty();) {
      const auto found = std::ranges::find(rest, config.eod);
      const bool ends = found != rest.end();
      const auto count = static_cast<size_t>(found - rest.begin() + (ends ? 1 : 0));
      writer.add_tokens(rest.first(count));
      is_open = true;
      if (ends) end();
      rest = rest.subspan(count);
    }
  }
  if (is_open) end();
  writer.publish();
  return writer.counts();
}

}  // namespace troupe
