// troupe data: sets of tokens, made, merged, converted, counted and looked at.
#include <algorithm>
#include <iostream>
#include <memory>
#include <span>

#include "apps/parent_folders.h"
#include "apps/print.h"
#include "apps/unit_option.h"
#include "apps/verbs.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/data/build/build_corpus.h"
#include "troupe/data/build/convert.h"
#include "troupe/data/build/count_corpus.h"
#include "troupe/data/build/describe_tokens.h"
#include "troupe/data/tokenizer/chat_template.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/data/tokens/token_file.h"

namespace troupe {
namespace {

Log log_of(bool quiet) {
  return Log({stderr_sink()}, quiet ? Level::kWarning : Level::kInfo);
}

void require_id(const char* option, const std::optional<int32_t>& id) {
  if (id.value_or(0) >= 0) return;
  fail(Code::kBadValue, option, *id, "is negative: an id of the vocabulary is expected");
}

// What build and count have in common: a corpus and how its text becomes ids.
struct CorpusOptions {
  BuildConfig build;
  std::string tokenizer, model_template;
  CLI::App* verb = nullptr;
  bool no_eod = false, special_as_text = false, json = false, quiet = false;
  std::optional<int32_t> eod;

  bool has_marks() const { return verb->count("--open") + verb->count("--close") > 0; }

  // What writes chats: --template, --open and --close, or the template of the tokenizer's folder.
  void choose_template(const Log& log) {
    if (build.format != CorpusFormat::kChat) {
      if (model_template.empty()) return;
      fail(Code::kBadValue, "--template", "is for chats: set --format chat");
    }
    if (!model_template.empty() && has_marks()) {
      fail(Code::kBadValue, "--template", "and --open or --close exclude each other");
    }
    if (!model_template.empty() && model_template != "none") {
      build.model_template = open_model_template(model_template, tokenizer);
    } else if (model_template.empty()) {
      build.model_template = find_model_template(tokenizer);
    }
    if (build.model_template && has_marks()) {
      log.warning("chat: the template in " + build.model_template->file +
                  " is not used: --open and --close are given");
      build.model_template.reset();
    }
    if (!build.model_template) {
      return log.info("chat: messages are written as " + to_text(build.chat.open) + " content " +
                      to_text(build.chat.close) + " (--open, --close; ChatML unless set)");
    }
    if (build.chat.learn != ChatTemplate{}.learn) {
      fail(Code::kBadValue, "--learn", build.chat.learn,
           "needs --template none: a template says what the assistant says");
    }
    log.info("chat: messages are written by the template in " + build.model_template->file +
             (build.model_template->chosen.empty() ? "" : ", " + build.model_template->chosen) +
             ", and end as it ends them: no end-of-document id but that of --eod");
  }

  void add_to(CLI::App& to) {
    verb = &to;
    to.add_option("input", build.input, "files, folders or patterns, in order")->required();
    to.add_option("-t,--tokenizer", tokenizer,
                  "tokenizer.json, SentencePiece .model, tiktoken ranks, model folder, or bytes");
    add_value(to, "--format", build.format,
              "auto (by the file: JSON and tables are jsonl, else text), text, lines, jsonl, chat");
    to.add_option("--key", build.key,
                  "JSON key, or column of a table, with the content; default: text; for chats, "
                  "by the layout");
    add_value(
        to, "--layout", build.layout,
        "chat: messages, sharegpt, prompt-completion, alpaca, preference; auto: by the keys of "
        "a line");
    to.add_option("--eod", eod,
                  "end-of-document id; default: the tokenizer's end of text; bytes: none");
    to.add_flag("--no-eod", no_eod, "no end-of-document id");
    to.add_flag("--special-as-text", special_as_text,
                "encode special tokens in the text as plain text");
    add_value(to, "--on-bad", build.on_bad, "unreadable lines: stop or skip");
    add_value(to, "--longest", build.longest, "longest line, or file where a file is a document");
    to.add_option("--template", model_template,
                  "chat: Jinja template: FILE, model folder, a NAME of several, or none; default: "
                  "that of the tokenizer's folder");
    to.add_option("--open", build.chat.open, "chat: text before a message")
        ->default_str(to_text(build.chat.open));
    to.add_option("--close", build.chat.close, "chat: text after a message")
        ->default_str(to_text(build.chat.close));
    to.add_option("--learn", build.chat.learn, "chat: roles whose messages are learned")
        ->capture_default_str();
    to.add_option("-w,--workers", build.workers,
                  "threads; 0: one per core. The output does not depend on it");
    to.add_flag("--json", json, "print the result as JSON");
    to.add_flag("-q,--quiet", quiet, "no progress lines");
  }

  BuildTokenizer open() {
    if (tokenizer.empty()) {
      fail(Code::kBadValue, "--tokenizer", "is required to encode text");
    }
    if (special_as_text && build.format == CorpusFormat::kChat) {
      fail(Code::kBadValue, "--special-as-text",
           "would also encode the chat template (--open, --close) as plain text");
    }
    require_id("--eod", eod);
    // All ids of bytes are text: where a document ends, the index alone says.
    if (tokenizer == "bytes" && !eod) no_eod = true;
    const bool wants_eod = !no_eod && !build.model_template;
    const std::shared_ptr<const Tokenizer> opened = open_tokenizer(tokenizer);
    if (!eod && wants_eod && opened->special().eos < 0) {
      fail(Code::kBadValue, "--tokenizer", tokenizer,
           "has no end-of-text token: set --eod or --no-eod");
    }
    build.append_eod = wants_eod || (eod && !no_eod);
    const EncodeOptions how{.add_special = false, .special_as_text = special_as_text};
    BuildTokenizer out{
        .encode = [opened, how](std::string_view text,
                                std::vector<int32_t>& ids) { opened->append(text, how, ids); },
        .spell = [opened](std::span<const int32_t> ids) { return spelled(*opened, ids); },
        .vocab = std::max<int64_t>(opened->vocab_size(), int64_t{eod.value_or(-1)} + 1),
        .fingerprint = hex(opened->fingerprint()),
        .manner = special_as_text ? "special as text" : ""};
    if (build.append_eod) out.eod = eod.value_or(opened->special().eos);
    return out;
  }
};

struct Built {  // --json of data build
  std::string output;
  BuildInfo info;
  int64_t sequences = 0, text_bytes = 0, read_bytes = 0;
  double seconds = 0;
  bool resumed = false;
  std::vector<std::string> bad;
  BuildInfo valid;
  int64_t learned = 0, not_utf8 = 0;
  static void visit(auto& b, auto&& f) {
    f("output", b.output);
    f("info", b.info);
    f("sequences", b.sequences);
    f("text_bytes", b.text_bytes);
    f("read_bytes", b.read_bytes);
    f("seconds", b.seconds);
    f("resumed", b.resumed);
    f("bad", b.bad);
    f("valid", b.valid);
    f("learned", b.learned);
    f("not_utf8", b.not_utf8);
  }
};

void build(CorpusOptions& options) {
  const Log log = log_of(options.quiet);
  options.choose_template(log);
  const BuildTokenizer tokenizer = options.open();
  make_parent_folders(options.build.output);
  Fs fs;
  const BuildResult r = build_corpus(options.build, tokenizer, fs, log);
  const std::string& prefix = options.build.output;
  if (options.json) {
    return print_json(Built{prefix, r.info, r.sequences, r.text_bytes, r.read_bytes, r.seconds,
                            r.resumed, r.bad, r.valid, r.learned, r.not_utf8});
  }
  for (const std::string& bad : r.bad) std::cout << "skipped  " << bad << '\n';
  std::cout << prefix << ".bin and .idx: " << with_commas(r.info.documents) << " documents, "
            << with_commas(r.info.tokens) << " tokens of " << (tokenizer.vocab < 65500 ? 2 : 4)
            << " bytes";
  if (r.info.skipped > 0) std::cout << ", " << with_commas(r.info.skipped) << " skipped";
  std::cout << '\n';
  const bool split = options.build.valid > 0;
  if (split) {
    std::cout << valid_prefix(prefix) << ".bin and .idx: " << with_commas(r.valid.documents)
              << " documents, " << with_commas(r.valid.tokens) << " tokens\n";
  }
  if (options.build.format == CorpusFormat::kChat) {
    std::cout << with_commas(r.learned) << " tokens are learned\n";
  }
  if (r.info.pairs) {
    std::cout << "documents are preference pairs, chosen and rejected: the recipe has train.loss: "
                 "dpo\n";
  }
  if (r.not_utf8 > 0) {
    std::cout << with_commas(r.not_utf8) << " documents hold bytes that are not UTF-8\n";
  }
  std::cout << with_commas(r.text_bytes) << " bytes of text, " << rate(r.read_bytes, r.seconds)
            << (r.resumed ? ", resumed" : "") << "\nIn a recipe: data: {train: [{path: " << prefix
            << (split ? "}], valid: [{path: " + valid_prefix(prefix) : "") << "}]}\n";
}

void add_build(CLI::App& data) {
  CLI::App* verb =
      data.add_subcommand("build", "tokenizes text, tables or chats to PREFIX.bin and PREFIX.idx");
  const auto options = std::make_shared<CorpusOptions>();
  options->add_to(*verb);
  verb->add_option("-o,--output", options->build.output, "PREFIX")->required();
  verb->add_flag("--replace", options->build.replace,
                 "overwrite PREFIX; a validation set held out of it goes too");
  verb->add_option("--valid", options->build.valid,
                   "fraction of documents for validation, written to PREFIX-valid: 0.01");
  verb->footer(
      "Example: troupe data build corpus/*.jsonl -t tokenizer.json -o data/train --valid 0.01\n"
      "After a stop or kill the same command resumes. Chats leave PREFIX.weights: a 1 for each id\n"
      "that is learned.");
  verb->callback([options] { build(*options); });
}

bool is_token_data(const std::string& path) {
  return file_kind(token_prefix(path) + ".idx") != FileKind::kNothing;
}

void count(CorpusOptions& options) {
  CorpusCount out;
  std::vector<std::string> text;
  for (const std::string& input : options.build.input) {
    if (!is_token_data(input)) {
      text.push_back(input);
      continue;
    }
    const TokenFile file(input, log_of(options.quiet));
    out.documents += file.index().num_documents();
    out.tokens += file.num_tokens();
    ++out.files;
  }
  if (!text.empty() && out.files > 0) {
    fail(Code::kBadValue, text[0], "is text and others are token files: count them separately");
  }
  if (!text.empty()) {
    const Log log = log_of(options.quiet);
    options.choose_template(log);
    out = count_corpus(options.build, options.open(), log);
  }
  if (options.json) return print_json(out);
  for (const std::string& bad : out.bad) std::cout << "skipped  " << bad << '\n';
  std::cout << with_commas(out.files) << " files, " << with_commas(out.documents) << " documents, "
            << with_commas(out.tokens) << " tokens\n";
  if (text.empty()) return;
  std::cout << with_commas(out.text_bytes) << " bytes of text, "
            << fixed(static_cast<double>(out.text_bytes) /
                         static_cast<double>(std::max<int64_t>(1, out.tokens)),
                     2)
            << " bytes a token, " << rate(out.text_bytes, out.seconds) << '\n';
  if (options.build.format == CorpusFormat::kChat) {
    std::cout << with_commas(out.learned) << " tokens are learned\n";
  }
  if (out.not_utf8 > 0) {
    std::cout << with_commas(out.not_utf8) << " documents hold bytes that are not UTF-8\n";
  }
}

void add_count(CLI::App& data) {
  CLI::App* verb = data.add_subcommand("count", "counts tokens of text or of token files");
  const auto options = std::make_shared<CorpusOptions>();
  options->add_to(*verb);
  verb->footer("Example: troupe data count corpus/ -t tokenizer.json");
  verb->callback([options] { count(*options); });
}

struct InspectOptions {
  std::string path, tokenizer;
  int64_t show = 0;
  bool fast = false, json = false;
};

// The first documents as text; what chats do not learn is in brackets.
void show_documents(const InspectOptions& options) {
  const auto tokenizer = open_tokenizer(options.tokenizer);
  const TokenFile file(options.path);
  const int64_t wanted = std::min(options.show, file.index().num_documents());
  std::vector<int64_t> bounds(static_cast<size_t>(wanted + 1));
  file.index().documents(0, bounds);
  for (int64_t d = 0; d < wanted; ++d) {
    constexpr int64_t kMost = 2000;
    const auto at = static_cast<size_t>(d);
    const int64_t begin = file.start(bounds[at]), end = file.start(bounds[at + 1]);
    std::vector<int32_t> ids(static_cast<size_t>(std::min(kMost, end - begin)));
    std::vector<float> weights(ids.size(), 1.0f);
    file.read(begin, ids);
    if (file.has_weights()) file.read_weights(begin, weights);
    std::cout << "--- document " << d << ", " << end - begin << " tokens"
              << (end - begin > kMost ? ", the first 2000:" : ":") << '\n';
    for (size_t i = 0; i < ids.size();) {
      size_t same = i + 1;
      while (same < ids.size() && weights[same] == weights[i]) ++same;
      const std::string text = tokenizer->decode(std::span(ids).subspan(i, same - i));
      std::cout << (weights[i] == 0 ? "[" + text + "]" : text);
      i = same;
    }
    std::cout << '\n';
  }
}

void inspect(const InspectOptions& options) {
  const TokenSummary summary =
      describe_tokens(options.path, !options.fast, Log({stderr_sink()}, Level::kWarning));
  if (options.json) return print_json(summary);
  print_tokens(summary);
  if (options.show == 0) return;
  if (options.tokenizer.empty()) {
    fail(Code::kBadValue, "--show", "requires --tokenizer to decode ids");
  }
  show_documents(options);
}

void add_inspect_data(CLI::App& data) {
  CLI::App* verb = data.add_subcommand("inspect", "describes and validates token files");
  const auto options = std::make_shared<InspectOptions>();
  verb->add_option("path", options->path, "PREFIX or one of its files")->required();
  verb->add_flag("--fast", options->fast, "check the index only, not every token");
  verb->add_option("--show", options->show, "print N documents; requires --tokenizer")
      ->check(CLI::NonNegativeNumber);
  verb->add_option("-t,--tokenizer", options->tokenizer, "tokenizer to decode them");
  verb->add_flag("--json", options->json, "print JSON");
  verb->footer("Example: troupe data inspect data/train --show 2 -t tokenizer.json");
  verb->callback([options] { inspect(*options); });
}

void print_counts(const std::string& output, const TokenCounts& counts, bool json) {
  if (json) return print_json(counts);
  std::cout << output << ".bin and .idx: " << with_commas(counts.documents) << " documents, "
            << with_commas(counts.sequences) << " sequences, " << with_commas(counts.tokens)
            << " tokens\n";
}

struct OutputOptions {
  std::vector<std::string> input;
  std::string output;
  bool replace = false, json = false;

  void add_to(CLI::App& verb, const std::string& what) {
    verb.add_option("input", input, what)->required();
    verb.add_option("-o,--output", output, "PREFIX")->required();
    verb.add_flag("--replace", replace, "overwrite PREFIX");
    verb.add_flag("--json", json, "print the counts as JSON");
  }
};

void add_merge(CLI::App& data) {
  CLI::App* verb = data.add_subcommand("merge", "merges token files");
  const auto options = std::make_shared<OutputOptions>();
  options->add_to(*verb, "PREFIXes, in order");
  verb->footer("Example: troupe data merge data/a data/b -o data/all");
  verb->callback([options] {
    make_parent_folders(options->output);
    Fs fs;
    const Log log({stderr_sink()}, Level::kWarning);
    print_counts(options->output,
                 merge_tokens(fs, options->input, options->output, options->replace, log),
                 options->json);
  });
}

enum class From { kMds, kLlmc, kFlatU16, kFlatU32 };
constexpr auto names_of(From) {
  return std::array{Named{"mds", From::kMds}, Named{"llmc", From::kLlmc},
                    Named{"flat-u16", From::kFlatU16}, Named{"flat-u32", From::kFlatU32}};
}

struct TokensFrom {
  OutputOptions files;
  From from = From::kMds;
  MdsConfig mds;
  int64_t vocab = 0;
  std::optional<int32_t> eod;
};

TokenCounts convert_tokens(const TokensFrom& options) {
  Fs fs;
  const Log log({stderr_sink()}, Level::kWarning);
  if (options.files.input.size() != 1) {
    fail(Code::kBadValue, "input", options.files.input.size(),
         "inputs were given; exactly one is supported");
  }
  const std::string& input = options.files.input[0];
  make_parent_folders(options.files.output);
  if (options.from == From::kMds) {
    MdsConfig mds = options.mds;
    mds.input = input;
    mds.output = options.files.output;
    mds.vocab = options.vocab;
    mds.replace = options.files.replace;
    return convert_mds(mds, fs, log);
  }
  if (!options.eod) {
    fail(Code::kBadValue, "--eod", "is required: the end-of-document id of", input);
  }
  require_id("--eod", options.eod);
  IdsConfig ids{.output = options.files.output,
                .eod = *options.eod,
                .vocab = options.vocab,
                .replace = options.files.replace};
  if (options.from == From::kLlmc) {
    ids.input = LlmcFile{.path = input};
  } else {
    const FlatType type = options.from == From::kFlatU16 ? FlatType::kU16 : FlatType::kU32;
    ids.input = FlatFile{.path = input, .type = type};
  }
  return convert_ids(ids, fs, log);
}

void add_convert_verb(CLI::App& data) {
  CLI::App* verb =
      data.add_subcommand("convert", "converts other programs' token files to .bin and .idx");
  const auto options = std::make_shared<TokensFrom>();
  options->files.add_to(*verb, "MDS folder (with index.json) or file of ids");
  add_value(*verb, "--from", options->from,
            "mds (LLM-Foundry), llmc (llm.c), flat-u16 or flat-u32 (ids alone, as OLMo)");
  verb->add_option("--column", options->mds.column, "mds: column of ids")->capture_default_str();
  verb->add_option("--bytes-are", options->mds.bytes_are,
                   "mds: type of a bytes column: i64, i32 or u16")
      ->capture_default_str();
  verb->add_option("--vocab", options->vocab,
                   "vocabulary size, for 2-byte ids if it fits; 0: unknown");
  verb->add_option("--eod", options->eod, "llmc, flat: end-of-document id");
  verb->footer("Example: troupe data convert mds/train --from mds --vocab 50432 -o data/train");
  verb->callback([options] {
    print_counts(options->files.output, convert_tokens(*options), options->files.json);
  });
}

}  // namespace

void add_data(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("data", "builds and inspects token files");
  verb->require_subcommand(1);
  verb->footer("Example: troupe data build corpus/ -t tokenizer.json -o data/train");
  add_build(*verb);
  add_count(*verb);
  add_inspect_data(*verb);
  add_merge(*verb);
  add_convert_verb(*verb);
}

}  // namespace troupe
