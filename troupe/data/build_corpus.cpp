#include "troupe/data/build_corpus.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <sstream>

#include "troupe/core/config.h"
#include "troupe/core/hash.h"
#include "troupe/core/json.h"
#include "troupe/data/corpus.h"
#include "troupe/data/encode_corpus.h"
#include "troupe/data/token_writer.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;
using Clock = std::chrono::steady_clock;

constexpr auto kTimeBetweenLines = std::chrono::seconds(5);

// Where a build that was stopped goes on. `of` is a hash of settings and files.
struct Journal {
  std::string of;
  TokenCounts counts;
  CorpusPlace next = {};
  int64_t skipped = 0;
  static void visit(auto& c, auto&& f) {
    f("of", c.of);
    f("counts", c.counts);
    f("next", c.next);
    f("skipped", c.skipped);
  }
};

// All that decides the bytes of the output.
std::string hash_of(const BuildConfig& config, const BuildTokenizer& tokenizer,
                    const std::vector<std::string>& files) {
  BuildConfig same = config;
  same.workers = 0;
  std::ostringstream text;
  write_json(text, same);
  text << tokenizer.vocab << ' ' << tokenizer.eod.value_or(-1) << ' ' << tokenizer.fingerprint
       << ' ' << tokenizer.manner;
  for (const std::string& path : files) {
    text << '\n'
         << path << ' ' << stdfs::file_size(path) << ' '
         << stdfs::last_write_time(path).time_since_epoch().count();
  }
  Hasher hasher;
  hasher.update(text.str());
  return hex(hasher.digest128());
}

// One build, from the corpus to the published files.
class Build {
 public:
  Build(const BuildConfig& config, const BuildTokenizer& tokenizer, Fs& fs, const Log& log,
        const BuildLimits& limits)
      : config_(config),
        tokenizer_(tokenizer),
        fs_(fs),
        log_(log),
        limits_(limits),
        files_(corpus_files(config.input)),
        rules_{.format = settled_format(config.format, files_),
               .key = config.key,
               .eod = config.append_eod ? tokenizer.eod : std::nullopt,
               .chat = config.chat},
        output_{.prefix = config.output,
                .type = token_type_for(tokenizer.vocab),
                .weights = rules_.format == CorpusFormat::kChat,
                .replace = config.replace},
        hash_(hash_of(config, tokenizer, files_)) {}

  BuildResult run() {
    const std::optional<Journal> journal = read_journal();
    result_.resumed = journal.has_value();
    result_.info.skipped = journal ? journal->skipped : 0;
    const CorpusPlace from = journal ? journal->next : CorpusPlace{};
    std::optional<TokenCounts> counts;
    if (journal) counts = journal->counts;
    TokenWriter writer(fs_, output_, counts);
    CorpusReader reader(files_,
                        {.whole_files = rules_.format == CorpusFormat::kText,
                         .piece = limits_.piece,
                         .longest = config_.longest.value},
                        from);
    result_.text_bytes = reader.total_bytes();
    noted_bytes_ = begin_bytes_ = reader.bytes_before(from);
    if (journal) log_.info("data build: goes on at " + files_[static_cast<size_t>(from.file)]);
    encode_all(reader, writer);
    finish(writer);
    return std::move(result_);
  }

 private:
  std::string journal_path() const { return TokenWriter::folder(output_.prefix) + "/journal.json"; }

  std::optional<Journal> read_journal() const {
    if (!stdfs::exists(journal_path())) return std::nullopt;
    Journal out;
    try {
      constexpr int64_t kMostBytes = 1 << 16;
      const std::string text = read_file(journal_path(), Code::kUnreadableData, kMostBytes);
      read_config(parse_json(text, journal_path()), out);
    } catch (const Error& error) {
      log_.warning(std::string("data build: begins anew: ") + error.what());
      return std::nullopt;
    }
    const bool fits = out.of == hash_ && TokenWriter::can_resume(output_, out.counts) &&
                      out.next.file < std::ssize(files_);
    if (!fits) log_.info("data build: settings or files have changed: begins anew");
    return fits ? std::optional(out) : std::nullopt;
  }

  void encode_all(CorpusReader& reader, TokenWriter& writer) {
    const EncodeJob job{rules_, tokenizer_.encode, config_.longest.value, config_.workers};
    encode_corpus(reader, job, [&](const EncodedPiece& piece) {
      write(piece, writer);
      note(piece, reader, writer);
    });
  }

  void write(const EncodedPiece& piece, TokenWriter& writer) {
    result_.info.skipped += skip_bad(piece.bad, config_.on_bad, result_.bad);
    int64_t begin = 0;
    const std::span ids(piece.documents.ids);
    const std::span weights(piece.documents.weights);
    for (const int64_t end : piece.documents.ends) {
      const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
      if (count > 0) {
        writer.add_tokens(ids.subspan(first, count),
                          output_.weights ? weights.subspan(first, count) : weights.first(0));
        writer.end_sequence();
      }
      writer.end_document();
      begin = end;
    }
  }

  // Progress for the reader of the log, and for the process that may have to go on.
  void note(const EncodedPiece& piece, const CorpusReader& reader, TokenWriter& writer) {
    const int64_t bytes = reader.bytes_before(piece.next);
    const auto now = Clock::now();
    if (now - last_line_ > kTimeBetweenLines) {
      last_line_ = now;
      log_line(bytes, writer.counts());
    }
    if (bytes - noted_bytes_ < limits_.bytes_between_notes) return;
    noted_bytes_ = bytes;
    writer.sync();
    std::ostringstream text;
    write_json(text, Journal{hash_, writer.counts(), piece.next, result_.info.skipped});
    publish_file(fs_, journal_path(), text.str());
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void log_line(int64_t bytes, const TokenCounts& counts) const {
    std::ostringstream line;
    line.precision(3);
    line << "data build: " << static_cast<double>(bytes) * 1e-6 << " of "
         << static_cast<double>(result_.text_bytes) * 1e-6 << " MB, "
         << static_cast<double>(bytes - begin_bytes_) * 1e-6 / seconds() << " MB/s, "
         << counts.documents << " documents, " << counts.tokens << " tokens";
    log_.info(line.str());
  }

  void finish(TokenWriter& writer) {
    result_.info.tokenizer = tokenizer_.fingerprint;
    result_.info.vocab = tokenizer_.vocab;
    result_.info.documents = writer.counts().documents;
    result_.info.tokens = writer.counts().tokens;
    result_.sequences = writer.counts().sequences;
    if (writer.counts().documents == 0) {
      fail(Code::kTooFewTokens, config_.output, "no document in", files_.size(), "files,",
           result_.info.skipped, "skipped");
    }
    std::ostringstream text;
    write_json(text, result_.info);
    publish_file(fs_, config_.output + ".json", text.str() + '\n');
    log_line(result_.text_bytes, writer.counts());
    writer.publish();
    result_.read_bytes = result_.text_bytes - begin_bytes_;
    result_.seconds = seconds();
    if (result_.info.skipped > 0) {
      log_.warning("data build: " + std::to_string(result_.info.skipped) + " documents skipped");
    }
  }

  const BuildConfig& config_;
  const BuildTokenizer& tokenizer_;
  Fs& fs_;
  const Log& log_;
  const BuildLimits limits_;
  const std::vector<std::string> files_;
  const DocumentRules rules_;
  const TokenOutput output_;
  const std::string hash_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_line_ = begin_;
  int64_t begin_bytes_ = 0, noted_bytes_ = 0;
  BuildResult result_;
};

}  // namespace

int64_t skip_bad(const std::vector<BadDocument>& bad, OnBad on_bad,
                 std::vector<std::string>& kept) {
  for (const BadDocument& document : bad) {
    if (on_bad == OnBad::kStop) fail(Code::kBadDocument, document.place, document.what);
    if (kept.size() < 10) kept.push_back(document.place + ": " + document.what);
  }
  return static_cast<int64_t>(bad.size());
}

void validate(const BuildConfig& config, const BuildTokenizer& tokenizer) {
  if (config.input.empty()) fail(Code::kBadValue, "input", "names no file");
  if (config.output.empty()) fail(Code::kBadValue, "output", "is empty");
  if (config.longest.value < 1) fail(Code::kBadValue, "longest", "is not 1 or more");
  if (config.workers < 0) fail(Code::kBadValue, "workers", config.workers, "is negative");
  if (config.append_eod && !tokenizer.eod) {
    fail(Code::kBadValue, "append_eod",
         "the tokenizer has no end-of-document id: set append_eod: false");
  }
  TROUPE_CHECK(tokenizer.vocab > 0 && tokenizer.encode, tokenizer.vocab);
}

BuildResult build_corpus(const BuildConfig& config, const BuildTokenizer& tokenizer, Fs& fs,
                         const Log& log, const BuildLimits& limits) {
  validate(config, tokenizer);
  return Build(config, tokenizer, fs, log, limits).run();
}

}  // namespace troupe
