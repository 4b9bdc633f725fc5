#include "troupe/data/build/count_corpus.h"

#include <chrono>
#include <numeric>
#include <optional>

#include "troupe/data/build/encode_corpus.h"

namespace troupe {

CorpusCount count_corpus(const BuildConfig& config, const BuildTokenizer& tokenizer,
                         const Log& log) {
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> files = corpus_files(config.input);
  DocumentRules rules{.format = config.format,
                      .key = settled_key(config.key, config.format),
                      .layout = config.layout,
                      .eod = config.append_eod ? tokenizer.eod : std::nullopt,
                      .chat = config.chat};
  require_layout(config);
  const auto first = first_chat(files, rules, config.longest.value);
  if (first) log.info("data count: " + first->text());
  rules.pairs = holds_pairs(first, config.layout);
  const bool chat = rules.format == CorpusFormat::kChat;
  CorpusReader reader(files,
                      {.format = rules.format, .key = rules.key, .longest = config.longest.value});
  CorpusCount out{.files = std::ssize(files), .bad = {}};
  std::optional<ChatRenderers> renderers;
  std::optional<ChatWriter> chats;
  if (config.model_template) {
    renderers.emplace(*config.model_template);
    chats.emplace(ChatWriter{*renderers, tokenizer.spell});
  }
  const EncodeJob job{.rules = rules,
                      .encode = tokenizer.encode,
                      .longest = config.longest.value,
                      .workers = config.workers,
                      .log = log,
                      .chats = chats ? &*chats : nullptr};
  encode_corpus(reader, job, [&](const EncodedPiece& piece) {
    out.skipped += skip_bad(piece.bad, config.on_bad, out.bad);
    out.not_utf8 += piece.not_utf8;
    out.text_bytes += piece.text_bytes;
    const EncodedDocuments& d = piece.documents;
    out.documents += std::ssize(d.ends);
    out.tokens += std::ssize(d.ids);
    out.learned +=
        chat ? std::accumulate(d.weights.begin(), d.weights.end(), int64_t{0}) : std::ssize(d.ids);
  });
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return out;
}

}  // namespace troupe
