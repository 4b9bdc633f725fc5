// troupe tokenizer: makes a vocabulary, and turns text into ids and back.
#include <algorithm>
#include <chrono>
#include <iostream>
#include <iterator>
#include <memory>

#include "apps/parent_folders.h"
#include "apps/print.h"
#include "apps/unit_option.h"
#include "apps/verbs.h"
#include "troupe/core/device/thread_pool.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/publish.h"
#include "troupe/data/build/corpus_texts.h"
#include "troupe/data/tokenizer/encode_all.h"
#include "troupe/data/tokenizer/tokenizer_json.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/data/tokenizer/train_bpe.h"

namespace troupe {
namespace {

struct TrainTokenizerOptions {
  TextsConfig texts;
  BpeTraining bpe{.vocab = 32768};
  std::string output;
  int workers = 0;
  bool json = false;
};

struct TrainedTokenizer {  // --json
  std::string output;
  int64_t vocab = 0, text_bytes = 0, read_bytes = 0, corpus_bytes = 0;
  double bytes_per_token = 0, seconds = 0;
  static void visit(auto& t, auto&& f) {
    f("output", t.output);
    f("vocab", t.vocab);
    f("text_bytes", t.text_bytes);
    f("read_bytes", t.read_bytes);
    f("corpus_bytes", t.corpus_bytes);
    f("bytes_per_token", t.bytes_per_token);
    f("seconds", t.seconds);
  }
};

// Bytes per token over some MiB of the texts. The new file is opened as any tokenizer file, and its
// ids must decode to the same text.
double bytes_per_token(const Tokenizer& tokenizer, const std::vector<std::string>& texts,
                       const Pool& pool) {
  constexpr int64_t kEnough = int64_t{8} << 20;
  std::vector<std::string_view> some;
  int64_t bytes = 0, ids = 0;
  for (size_t i = 0; i < texts.size() && bytes < kEnough; ++i) {
    some.push_back(texts[i]);
    bytes += std::ssize(texts[i]);
  }
  const auto encoded = encode_all(tokenizer, some, pool, {.special_as_text = true});
  for (size_t i = 0; i < some.size(); ++i) {
    ids += std::ssize(encoded[i]);
    const std::string back = tokenizer.decode(encoded[i]);
    // What is no UTF-8 is repaired on the way in (tokenizer.h).
    if (back != some[i] && back.find("\xEF\xBF\xBD") == std::string::npos) {
      fail(Code::kBrokenContract, "tokenizer train", "text", i, "does not come back as it was");
    }
  }
  return ids == 0 ? 0 : static_cast<double>(bytes) / static_cast<double>(ids);
}

void train_tokenizer(const TrainTokenizerOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  const CorpusTexts corpus = corpus_texts(options.texts);
  std::vector<std::string_view> texts(corpus.texts.begin(), corpus.texts.end());
  const Pool pool = thread_pool(options.workers);
  const std::string file = train_bpe(texts, options.bpe, pool);
  const auto tokenizer = parse_tokenizer(file, "", options.output);
  TrainedTokenizer out{.output = options.output,
                       .vocab = tokenizer->vocab_size(),
                       .text_bytes = corpus.bytes,
                       .read_bytes = corpus.read_bytes,
                       .corpus_bytes = corpus.corpus_bytes,
                       .bytes_per_token = bytes_per_token(*tokenizer, corpus.texts, pool)};
  if (!is_standard_output(options.output)) make_parent_folders(options.output);
  Fs fs;
  write_output(fs, options.output, file);
  out.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  if (is_standard_output(options.output)) return;  // it holds the tokenizer, and that alone
  if (options.json) return print_json(out);
  std::cout << options.output << ": " << with_commas(out.vocab) << " tokens, "
            << fixed(out.bytes_per_token, 2) << " bytes a token\n"
            << with_commas(out.read_bytes) << " of " << with_commas(out.corpus_bytes)
            << " bytes of corpus, " << rate(out.read_bytes, out.seconds) << '\n';
  if (out.vocab < options.bpe.vocab) {
    std::cout << "The text holds no more pairs that occur twice: " << options.bpe.vocab
              << " tokens were asked for.\n";
  }
}

void add_train(CLI::App& group) {
  CLI::App* verb = group.add_subcommand("train", "text to a tokenizer.json (byte-level BPE)");
  const auto options = std::make_shared<TrainTokenizerOptions>();
  verb->add_option("input", options->texts.input, "files, folders or patterns")->required();
  verb->add_option("-o,--output", options->output, "the file to write; -: standard output")
      ->required();
  verb->add_option("--vocab", options->bpe.vocab, "tokens in all")->capture_default_str();
  verb->add_option("--pattern", options->bpe.pattern,
                   "how text is cut into words: gpt2, cl100k (Llama 3), qwen, o200k (gpt-oss)")
      ->capture_default_str();
  verb->add_option("--special", options->bpe.special, "special tokens; the first ids")
      ->expected(1)
      ->take_all()
      ->capture_default_str();
  verb->add_option("--max-token-bytes", options->bpe.max_token_bytes, "longest token")
      ->capture_default_str();
  add_value(*verb, "--format", options->texts.format, "auto, text, lines, jsonl or chat");
  verb->add_option("--key", options->texts.key, "of a line's object: text, of chats messages");
  add_value(*verb, "--layout", options->texts.layout, "chat: as of troupe data build");
  add_value(*verb, "--most", options->texts.most,
            "of the corpus that is read, spread over all of it; 0B: all");
  verb->add_option("-w,--workers", options->workers, "threads; 0: one a core");
  verb->add_flag("--json", options->json, "print the result as JSON");
  verb->footer(
      "Example: troupe tokenizer train corpus/*.jsonl --vocab 32768 -o tokenizer.json\n"
      "Hugging Face's tokenizers load the file and give the same ids.");
  verb->callback([options] { train_tokenizer(*options); });
}

// The text named, that of a file, or what comes in on stdin.
struct TextInput {
  std::string tokenizer;
  std::vector<std::string> words;
  std::string file;
  bool lines = false, json = false;

  void add_to(CLI::App& verb, const std::string& what) {
    verb.add_option("tokenizer", tokenizer, "a tokenizer's file or folder, or bytes")->required();
    verb.add_option("input", words, what + "; else --file, else standard input");
    verb.add_option("-f,--file", file, "read this file");
    verb.add_flag("--lines", lines, "each line for itself");
    verb.add_flag("--json", json, "print JSON, a document a line");
  }

  std::vector<std::string> read() const {
    std::string text;
    if (!words.empty()) {
      for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
    } else if (!file.empty()) {
      text = read_file(file);
    } else {
      text.assign(std::istreambuf_iterator<char>(std::cin), {});
    }
    if (!lines) return {text};
    std::vector<std::string> out;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.find('\n', at), text.size());
      out.push_back(text.substr(at, end - at));
      at = end + 1;
    }
    return out;
  }
};

struct EncodedText {
  std::vector<TokenId> ids;
  std::vector<std::string> tokens;
  static void visit(auto& e, auto&& f) {
    f("ids", e.ids);
    f("tokens", e.tokens);
  }
};

void encode(const TextInput& input, const EncodeOptions& how, bool spell) {
  const auto tokenizer = open_tokenizer(input.tokenizer);
  for (const std::string& line : tokenizer->warnings()) std::cerr << "warning: " << line << '\n';
  for (const std::string& text : input.read()) {
    EncodedText out{.ids = tokenizer->encode(text, how), .tokens = {}};
    for (const TokenId id : out.ids) out.tokens.push_back(tokenizer->token(id));
    if (input.json) {
      print_json(out);
      continue;
    }
    const char* separator = "";
    for (size_t i = 0; i < out.ids.size(); ++i) {
      std::cout << separator << out.ids[i];
      if (spell) std::cout << ':' << to_text(out.tokens[i]);
      separator = " ";
    }
    std::cout << '\n';
  }
}

std::vector<TokenId> ids_of(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<TokenId> out;
  constexpr const char* kBetween = " \t\r\n,[]";
  for (size_t at = text.find_first_not_of(kBetween); at != std::string::npos;) {
    const size_t end = std::min(text.find_first_of(kBetween, at), text.size());
    TokenId id = 0;
    const std::string word = text.substr(at, end - at);
    if (!from_text(word, id) || id < 0 || id >= tokenizer.vocab_size()) {
      fail(Code::kBadToken, "the input's id " + std::to_string(out.size()), to_text(word),
           "is none of the", tokenizer.vocab_size(), "ids of this tokenizer");
    }
    out.push_back(id);
    at = text.find_first_not_of(kBetween, end);
  }
  return out;
}

struct DecodedText {
  std::string text;
  static void visit(auto& d, auto&& f) { f("text", d.text); }
};

void decode(const TextInput& input, const DecodeOptions& how) {
  const auto tokenizer = open_tokenizer(input.tokenizer);
  for (const std::string& text : input.read()) {
    const DecodedText out{tokenizer->decode(ids_of(text, *tokenizer), how)};
    input.json ? print_json(out) : void(std::cout << out.text << '\n');
  }
}

void add_encode(CLI::App& group) {
  CLI::App* verb = group.add_subcommand("encode", "text to ids");
  const auto input = std::make_shared<TextInput>();
  const auto how = std::make_shared<EncodeOptions>();
  const auto spell = std::make_shared<bool>(false);
  input->add_to(*verb, "the text");
  verb->add_flag("--spell", *spell, "each id with its token");
  verb->add_flag("!--no-special", how->add_special, "add nothing around the text, such as <s>");
  verb->add_flag("--special-as-text", how->special_as_text,
                 "special tokens spelled out in the text are plain text");
  verb->footer("Example: troupe tokenizer encode tokenizer.json 'Hello world' --spell");
  verb->callback([=] { encode(*input, *how, *spell); });
}

void add_decode(CLI::App& group) {
  CLI::App* verb = group.add_subcommand("decode", "ids to text");
  const auto input = std::make_shared<TextInput>();
  const auto how = std::make_shared<DecodeOptions>();
  input->add_to(*verb, "ids, by spaces or commas");
  verb->add_flag("--skip-special", how->skip_special, "leave special tokens out");
  verb->footer("Example: troupe tokenizer decode tokenizer.json 15496 995");
  verb->callback([=] { decode(*input, *how); });
}

}  // namespace

void add_tokenizer(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("tokenizer", "makes and uses vocabularies");
  verb->require_subcommand(1);
  verb->footer("Example: troupe tokenizer train corpus/ --vocab 32768 -o tokenizer.json");
  add_train(*verb);
  add_encode(*verb);
  add_decode(*verb);
}

}  // namespace troupe
