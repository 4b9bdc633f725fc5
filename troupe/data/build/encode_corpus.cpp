#include "troupe/data/build/encode_corpus.h"

#include <algorithm>
#include <memory>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/build/ordered_workers.h"

namespace troupe {

std::string settled_key(const std::string& key, CorpusFormat format) {
  return key.empty() && format != CorpusFormat::kChat ? "text" : key;
}

EncodedPiece encode_piece(const CorpusPiece& piece, const DocumentRules& rules,
                          const Encode& encode, int64_t longest) {
  EncodedPiece out{.next = piece.next, .text_bytes = std::ssize(piece.text)};
  DocumentRules here = rules;
  here.format = piece.format;
  int64_t number = piece.first_line;
  const auto add = [&](std::string_view text) {
    const std::string place =
        here.format == CorpusFormat::kText
            ? piece.path
            : piece.path + (piece.is_table ? ": row " : ":") + std::to_string(number);
    const auto too_long = [&](int64_t bytes) {
      out.bad.push_back({place, "has " + std::to_string(bytes) + " bytes, more than `longest`, " +
                                    std::to_string(longest)});
    };
    if (piece.long_line) return too_long(*piece.long_line);
    if (std::ssize(text) > longest) return too_long(std::ssize(text));
    if (!is_utf8(text) && out.not_utf8++ == 0) out.first_not_utf8 = place;
    try {
      add_document(text, here, encode, out.documents);
    } catch (const std::string& what) {
      out.bad.push_back({place, what});
    }
  };
  std::string_view text = piece.text;
  if (piece.is_first) text = without_byte_order_mark(text);
  if (here.format == CorpusFormat::kText || piece.long_line) return add(text), out;
  for (; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) add(line);
  }
  return out;
}

void require_workers(int workers) {
  constexpr int kMost = 1024;
  if (0 <= workers && workers <= kMost) return;
  fail(Code::kBadValue, "workers", workers, "is not between 0, one for each core, and", kMost);
}

void encode_corpus(CorpusReader& reader, const EncodeJob& job,
                   const std::function<void(const EncodedPiece&)>& f) {
  require_workers(job.workers);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = std::max(1, job.workers > 0 ? job.workers : cores);
  OrderedWorkers<EncodedPiece> workers(threads);
  if (workers.threads() < threads) {
    job.log.warning("workers: the system started " + std::to_string(workers.threads()) + " of " +
                    std::to_string(threads) +
                    " threads, and they do all the work: its limit is `ulimit -u`, or pids.max of "
                    "the control group");
  }
  bool more = true;
  while (more || workers.pending() > 0) {
    if (more && workers.pending() < 2 * static_cast<size_t>(threads)) {
      std::optional<CorpusPiece> piece = reader.next();
      more = piece.has_value();
      if (!more) continue;
      workers.add([&job, p = std::make_shared<CorpusPiece>(std::move(*piece))] {
        return encode_piece(*p, job.rules, job.encode, job.longest);
      });
      continue;
    }
    f(workers.take());
  }
}

}  // namespace troupe
