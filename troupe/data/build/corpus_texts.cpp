#include "troupe/data/build/corpus_texts.h"

#include "troupe/core/check.h"
#include "troupe/data/build/encode_corpus.h"

namespace troupe {

CorpusTexts corpus_texts(const TextsConfig& config) {
  const std::vector<std::string> files = corpus_files(config.input);
  const DocumentRules rules{.format = config.format,
                            .key = settled_key(config.key, config.format),
                            .layout = config.layout,
                            .chat = {.open = "", .close = ""}};
  const CorpusReader::Limits usual;
  CorpusReader reader(files, {.format = rules.format, .key = rules.key});
  CorpusTexts out{.corpus_bytes = reader.total_bytes()};
  const int64_t most = config.most.value > 0 ? config.most.value : out.corpus_bytes;
  const double share =
      static_cast<double>(most) / static_cast<double>(std::max<int64_t>(1, out.corpus_bytes));
  const Encode keep = [&out](std::string_view text, std::vector<int32_t>&) {
    if (!text.empty()) out.texts.emplace_back(text);
  };
  int64_t before = 0;
  while (const auto piece = reader.next()) {
    const int64_t behind = reader.bytes_before(piece->next);
    const auto due = static_cast<int64_t>(share * static_cast<double>(before));
    const int64_t bytes = behind - before;
    before = behind;
    if (share < 1 && out.read_bytes > due) continue;
    const EncodedPiece encoded = encode_piece(*piece, rules, keep, usual.longest);
    if (!encoded.bad.empty()) {
      fail(Code::kBadDocument, encoded.bad[0].place, encoded.bad[0].what);
    }
    out.read_bytes += bytes;
  }
  for (const std::string& text : out.texts) out.bytes += std::ssize(text);
  return out;
}

}  // namespace troupe
