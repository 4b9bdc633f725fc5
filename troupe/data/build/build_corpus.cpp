#include "troupe/data/build/build_corpus.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <sstream>

#include "troupe/core/config/config.h"
#include "troupe/core/config/facts.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"
#include "troupe/data/build/corpus.h"
#include "troupe/data/build/encode_corpus.h"
#include "troupe/data/tokens/token_writer.h"

namespace troupe {
namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kTimeBetweenLines = std::chrono::seconds(5);

// Where a build that was stopped resumes. `of` is a hash of settings and files.
struct Journal {
  std::string of;
  TokenCounts counts, valid;
  CorpusPlace next = {};
  int64_t skipped = 0, not_utf8 = 0, learned = 0;
  static void visit(auto& c, auto&& f) {
    f("of", c.of);
    f("counts", c.counts);
    f("valid", c.valid);
    f("next", c.next);
    f("skipped", c.skipped);
    f("not_utf8", c.not_utf8);
    f("learned", c.learned, OldName{"learnt"});
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
    const InputFile file(path);
    text << '\n' << path << ' ' << file.size() << ' ' << file.written_ns();
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
        rules_{.format = config.format,
               .key = settled_key(config.key, config.format),
               .layout = config.layout,
               .eod = config.append_eod ? tokenizer.eod : std::nullopt,
               .chat = config.chat,
               .held_out = config.valid},
        output_{.prefix = config.output,
                .type = token_type_for(tokenizer.vocab),
                .weights = config.format == CorpusFormat::kChat,
                .replace = config.replace},
        valid_output_(output_),
        hash_(hash_of(config, tokenizer, files_)) {
    valid_output_.prefix = valid_prefix(config.output);
    if (config.model_template) renderers_.emplace(*config.model_template);
  }

  BuildResult run() {
    const std::optional<Journal> journal = journal_to_go_on();
    result_.resumed = journal.has_value();
    CorpusPlace from = {};
    std::optional<TokenCounts> counts, valid_counts;
    if (journal) {
      result_.info.skipped = journal->skipped;
      result_.not_utf8 = journal->not_utf8;
      result_.learned = journal->learned;
      from = journal->next;
      counts = journal->counts;
      valid_counts = journal->valid;
    }
    Writers writers{.train = TokenWriter(fs_, output_, counts)};
    if (config_.valid > 0) writers.valid.emplace(fs_, valid_output_, valid_counts);
    CorpusReader reader(files_,
                        {.format = rules_.format,
                         .key = rules_.key,
                         .piece = limits_.piece,
                         .longest = config_.longest.value},
                        from);
    result_.text_bytes = reader.total_bytes();
    noted_bytes_ = begin_bytes_ = reader.bytes_before(from);
    if (journal) log_.info("data build: resumes at " + files_[static_cast<size_t>(from.file)]);
    const auto first = first_chat(files_, rules_, config_.longest.value);
    if (first) log_.info("data build: " + first->text());
    rules_.pairs = holds_pairs(first, config_.layout);
    encode_all(reader, writers);
    finish(writers);
    return std::move(result_);
  }

 private:
  struct Writers {
    TokenWriter train;
    std::optional<TokenWriter> valid = {};
  };

  std::string journal_path() const { return TokenWriter::folder(output_.prefix) + "/journal.json"; }

  // The journal of an earlier try, where this one can resume it.
  std::optional<Journal> journal_to_go_on() {
    std::optional<Journal> out = read_journal();
    if (!out) return out;
    // What that try has published of the two outputs is this build's own.
    const bool same = out->of == hash_;
    valid_output_.replace |= same;
    const bool fits = same && TokenWriter::can_resume(output_, out->counts) &&
                      (config_.valid == 0 || TokenWriter::can_resume(valid_output_, out->valid)) &&
                      out->next.file < std::ssize(files_);
    if (fits) return out;
    log_.info(same ? "data build: begins anew"
                   : "data build: settings or files have changed: begins anew");
    return std::nullopt;
  }

  std::optional<Journal> read_journal() const {
    if (!is_there(journal_path())) return std::nullopt;
    Journal out;
    try {
      constexpr int64_t kMostBytes = 1 << 16;
      const std::string text = read_file(journal_path(), Code::kUnreadableData, kMostBytes);
      read_config(parse_json(text, journal_path()), out);
    } catch (const Error& error) {
      log_.warning(std::string("data build: begins anew: ") + error.what());
      return std::nullopt;
    }
    return out;
  }

  void encode_all(CorpusReader& reader, Writers& writers) {
    std::optional<ChatWriter> chats;
    if (renderers_) chats.emplace(ChatWriter{*renderers_, tokenizer_.spell});
    const EncodeJob job{.rules = rules_,
                        .encode = tokenizer_.encode,
                        .longest = config_.longest.value,
                        .workers = config_.workers,
                        .log = log_,
                        .chats = chats ? &*chats : nullptr};
    encode_corpus(reader, job, [&](const EncodedPiece& piece) {
      write(piece, writers);
      note(piece, reader, writers);
    });
  }

  void write(const EncodedPiece& piece, Writers& writers) {
    result_.info.skipped += skip_bad(piece.bad, config_.on_bad, result_.bad);
    if (result_.not_utf8 == 0) first_not_utf8_ = piece.first_not_utf8;
    result_.not_utf8 += piece.not_utf8;
    result_.learned += output_.weights ? std::ranges::count(piece.documents.weights, 1)
                                       : std::ssize(piece.documents.ids);
    int64_t begin = 0;
    size_t document = 0;
    const std::span ids(piece.documents.ids);
    const std::span weights(piece.documents.weights);
    for (const int64_t end : piece.documents.ends) {
      const auto first = static_cast<size_t>(begin), count = static_cast<size_t>(end - begin);
      const bool held_out = writers.valid && piece.documents.held_out[document++];
      TokenWriter& writer = held_out ? *writers.valid : writers.train;
      if (count > 0) {
        writer.add_tokens(ids.subspan(first, count),
                          output_.weights ? weights.subspan(first, count) : weights.first(0));
        writer.end_sequence();
      }
      writer.end_document();
      begin = end;
    }
  }

  // Progress for the reader of the log, and for the process that may have to resume.
  void note(const EncodedPiece& piece, const CorpusReader& reader, Writers& writers) {
    const int64_t bytes = reader.bytes_before(piece.next);
    const auto now = Clock::now();
    if (now - last_line_ > kTimeBetweenLines) {
      last_line_ = now;
      log_line(bytes, writers);
    }
    place_ = piece.next;
    if (bytes - noted_bytes_ < limits_.bytes_between_notes) return;
    noted_bytes_ = bytes;
    write_journal(writers);
  }

  void write_journal(Writers& writers) {
    writers.train.sync();
    if (writers.valid) writers.valid->sync();
    std::ostringstream text;
    write_json(text, Journal{.of = hash_,
                             .counts = writers.train.counts(),
                             .valid = writers.valid ? writers.valid->counts() : TokenCounts{},
                             .next = place_,
                             .skipped = result_.info.skipped,
                             .not_utf8 = result_.not_utf8,
                             .learned = result_.learned});
    publish_file(fs_, journal_path(), text.str());
  }

  double seconds() const { return std::chrono::duration<double>(Clock::now() - begin_).count(); }

  void log_line(int64_t bytes, const Writers& writers) const {
    TokenCounts counts = writers.train.counts();
    if (writers.valid) {
      counts.documents += writers.valid->counts().documents;
      counts.tokens += writers.valid->counts().tokens;
    }
    std::ostringstream line;
    line.precision(3);
    line << "data build: " << static_cast<double>(bytes) * 1e-6 << " of "
         << static_cast<double>(result_.text_bytes) * 1e-6 << " MB, "
         << static_cast<double>(bytes - begin_bytes_) * 1e-6 / seconds() << " MB/s, "
         << counts.documents << " documents, " << counts.tokens << " tokens";
    log_.info(line.str());
  }

  BuildInfo info_of(const TokenWriter& writer) const {
    return {.tokenizer = tokenizer_.fingerprint,
            .vocab = tokenizer_.vocab,
            .documents = writer.counts().documents,
            .tokens = writer.counts().tokens,
            .skipped = result_.info.skipped,
            .chat = rules_.format == CorpusFormat::kChat && !config_.model_template
                        ? std::optional(config_.chat)
                        : std::nullopt,
            .model_template = config_.model_template,
            .held_out = 0,
            .pairs = rules_.pairs.value_or(false)};
  }

  void publish(TokenWriter& writer, const std::string& prefix, const BuildInfo& info) {
    std::ostringstream text;
    write_json(text, info);
    publish_file(fs_, prefix + ".json", text.str() + '\n');
    writer.publish();
  }

  std::optional<BuildInfo> info_of_valid() const {
    try {
      return read_build_info(valid_output_.prefix);
    } catch (const Error&) {
      return std::nullopt;  // of another program
    }
  }

  // A PREFIX-valid that this build does not write. One that was held out of an earlier PREFIX holds
  // documents that are trained on from now on.
  void look_at_other_valid() {
    const std::string& prefix = valid_output_.prefix;
    const std::optional<BuildInfo> info = info_of_valid();
    const std::optional<double> held_out = info ? info->held_out : std::nullopt;
    const bool ours = held_out.value_or(0) > 0;
    if (ours && config_.replace) return remove_valid();
    const bool may_be = config_.replace && !held_out && is_there(prefix + ".idx");
    if (!ours && !may_be) return;
    log_.warning("data build: " + prefix + " stays as it is" +
                 (ours ? ", though it was held out of an earlier " + config_.output
                       : "; if it was held out of the replaced " + config_.output) +
                 ", its documents are in the new one: it says nothing about new text then");
  }

  // Into the folder that ends with this build. The index goes first, and last what it is known by:
  // a build that is killed here is made again by the same command.
  void remove_valid() {
    const std::string& prefix = valid_output_.prefix;
    for (const char* end : {".idx", ".bin", ".weights", ".json"}) {
      const std::string to = TokenWriter::folder(output_.prefix) + "/replaced-valid" + end;
      if (fs_.rename(prefix + end, to) == 0 || errno == ENOENT) continue;
      fail_file(Code::kFileFailed, prefix + end, "rename to " + to, errno);
    }
    log_.warning("data build: " + prefix + " is removed: it was held out of the replaced " +
                 config_.output + ", and without --valid its documents are in the new one");
  }

  void require_documents(const Writers& writers) const {
    const int64_t train = writers.train.counts().documents;
    const int64_t valid = writers.valid ? writers.valid->counts().documents : 0;
    if (train + valid == 0) {
      fail(Code::kTooFewTokens, config_.output, "no document in", files_.size(), "files,",
           result_.info.skipped, "skipped");
    }
    if (config_.valid == 0 || (train > 0 && valid > 0)) return;
    fail(Code::kTooFewTokens, config_.output, "a validation share of", config_.valid, "takes",
         valid == 0 ? "none of" : "all of", train + valid,
         "documents:", valid == 0 ? "set a larger share, or" : "set a smaller share, or",
         "cut the text into more documents (with `format: lines` each line is one)");
  }

  void finish(Writers& writers) {
    require_documents(writers);
    result_.info = info_of(writers.train);
    result_.sequences = writers.train.counts().sequences;
    log_line(result_.text_bytes, writers);
    if (writers.valid) {
      write_journal(writers);  // by which another try knows PREFIX-valid for its own
      result_.valid = info_of(*writers.valid);
      result_.valid.held_out = config_.valid;
      publish(*writers.valid, valid_output_.prefix, result_.valid);
    } else {
      look_at_other_valid();
    }
    publish(writers.train, config_.output, result_.info);
    result_.read_bytes = result_.text_bytes - begin_bytes_;
    result_.seconds = seconds();
    warn();
  }

  // A share of the documents is another share of the tokens where few documents differ in length.
  void warn_of_share() const {
    constexpr double kFar = 2;  // times as many tokens as asked for, or as few
    const int64_t valid = result_.valid.tokens, all = valid + result_.info.tokens;
    const double wanted = config_.valid * static_cast<double>(all);
    const auto held_out = static_cast<double>(valid);
    if (held_out * kFar >= wanted && held_out <= wanted * kFar) return;
    log_.warning(
        "data build: a validation share of " + to_text(config_.valid) + " would be " +
        std::to_string(static_cast<int64_t>(wanted)) + " of " + std::to_string(all) +
        " tokens, and " + valid_output_.prefix + " has " + std::to_string(valid) + ", in " +
        std::to_string(result_.valid.documents) + " of " +
        std::to_string(result_.valid.documents + result_.info.documents) +
        " documents: whole ones are held out, and their lengths differ. Take another share,"
        " or cut the text into more documents (with `format: lines` each line is one)");
  }

  // What the numbers alone would not make anybody look at.
  void warn() const {
    if (config_.valid > 0) warn_of_share();
    if (result_.info.skipped > 0) {
      log_.warning("data build: " + std::to_string(result_.info.skipped) + " documents skipped");
    }
    if (result_.not_utf8 > 0) {
      log_.warning("data build: " + std::to_string(result_.not_utf8) +
                   " documents hold bytes that are not UTF-8" +
                   (first_not_utf8_.empty() ? "" : ", the first is " + first_not_utf8_) +
                   ": the tokenizer took them as they are");
    }
    if (result_.learned == 0 && result_.info.tokens > 0 && config_.model_template) {
      log_.warning("data build: nothing is learned: the template of " +
                   config_.model_template->file + " marks nothing as the assistant's");
    } else if (result_.learned == 0 && result_.info.tokens > 0) {
      log_.warning("data build: nothing is learned: no message has the role \"" +
                   config_.chat.learn + "\" (chat.learn; data build --learn)");
    }
  }

  const BuildConfig& config_;
  const BuildTokenizer& tokenizer_;
  Fs& fs_;
  const Log& log_;
  const BuildLimits limits_;
  const std::vector<std::string> files_;
  DocumentRules rules_;
  const TokenOutput output_;
  TokenOutput valid_output_;
  const std::string hash_;
  const Clock::time_point begin_ = Clock::now();
  Clock::time_point last_line_ = begin_;
  int64_t begin_bytes_ = 0, noted_bytes_ = 0;
  CorpusPlace place_ = {};  // behind what is written
  std::string first_not_utf8_ = {};
  std::optional<ChatRenderers> renderers_ = {};
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

void require_layout(const BuildConfig& config) {
  if (config.layout == ChatLayout::kAuto) return;
  const std::string layout = to_text(config.layout);
  if (config.format != CorpusFormat::kChat) {
    fail(Code::kBadValue, "layout", layout, "is of chats: set format: chat");
  }
  if (!config.key.empty()) {
    fail(Code::kBadValue, "layout", layout, "and key", config.key,
         "exclude each other: the list under a key has no other keys around it");
  }
}

void validate(const BuildConfig& config, const BuildTokenizer& tokenizer) {
  if (config.input.empty()) fail(Code::kBadValue, "input", "names no file");
  if (config.output.empty()) fail(Code::kBadValue, "output", "is empty");
  if (!(config.valid >= 0 && config.valid < 1)) {
    fail(Code::kBadValue, "valid", config.valid, "is no part of the documents: 0 to less than 1");
  }
  if (config.longest.value < 1) fail(Code::kBadValue, "longest", "must be 1 or more");
  require_workers(config.workers);
  if (config.append_eod && !tokenizer.eod) {
    fail(Code::kBadValue, "append_eod",
         "the tokenizer has no end-of-document id: set append_eod: false");
  }
  require_layout(config);
  TROUPE_CHECK(tokenizer.vocab > 0 && tokenizer.encode, tokenizer.vocab);
  TROUPE_CHECK(!config.model_template || tokenizer.spell, "no spelling of ids");
  if (config.model_template && config.format != CorpusFormat::kChat) {
    fail(Code::kBadValue, "model_template", "writes chats: set format: chat");
  }
}

BuildResult build_corpus(const BuildConfig& config, const BuildTokenizer& tokenizer, Fs& fs,
                         const Log& log, const BuildLimits& limits) {
  validate(config, tokenizer);
  return Build(config, tokenizer, fs, log, limits).run();
}

}  // namespace troupe
