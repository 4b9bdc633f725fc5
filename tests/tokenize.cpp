// What tests/tokenizer_test.py and bench/tokenizer_speed.py run:
//   tokenize encode TOKENIZER DOCUMENTS IDS [no-special]
//   tokenize decode TOKENIZER IDS DOCUMENTS [skip-special]   what is streamed is compared with it
//     too
//   tokenize bench TOKENIZER DOCUMENTS THREADS TIMES         a line of seconds each
//   tokenize train VOCAB PATTERN DOCUMENTS TOKENIZER THREADS
//   tokenize show TOKENIZER                                  kind, size, special ids
// DOCUMENTS and IDS are records: a little-endian u32 n, then n bytes or n 32-bit ids.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <thread>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/publish.h"
#include "troupe/data/tokenizer/encode_all.h"
#include "troupe/data/tokenizer/tokenizers.h"
#include "troupe/data/tokenizer/train_bpe.h"

namespace troupe {
namespace {

using Ids = std::vector<TokenId>;

// The records of a file, each of n items of `size` bytes.
std::vector<std::string_view> records(std::string_view all, size_t size) {
  std::vector<std::string_view> out;
  while (!all.empty()) {
    uint32_t n = 0;
    std::memcpy(&n, all.data(), 4);
    out.push_back(all.substr(4, n * size));
    all.remove_prefix(4 + n * size);
  }
  return out;
}

void put_record(std::string& out, const void* data, size_t n, size_t size) {
  const auto count = static_cast<uint32_t>(n);
  out.append(reinterpret_cast<const char*>(&count), 4);
  out.append(static_cast<const char*>(data), n * size);
}

Pool pool_of(int64_t threads) {
  return [threads](int64_t n, int64_t, const Range& range) {
    std::vector<std::jthread> workers;
    for (int64_t t = 0; t < threads; ++t) {
      workers.emplace_back([&range, begin = n * t / threads, end = n * (t + 1) / threads] {
        if (begin < end) range(begin, end);
      });
    }
  };
}

void encode(const Tokenizer& tokenizer, const std::string& in, const std::string& out,
            bool add_special) {
  const std::string all = read_file(in);
  std::string bytes;
  for (const std::string_view text : records(all, 1)) {
    const Ids ids = tokenizer.encode(text, {.add_special = add_special});
    put_record(bytes, ids.data(), ids.size(), sizeof(TokenId));
  }
  Fs fs;
  publish_file(fs, out, bytes);
}

void decode(const Tokenizer& tokenizer, const std::string& in, const std::string& out,
            bool skip_special) {
  const std::string all = read_file(in);
  const DecodeOptions options{.skip_special = skip_special};
  std::string bytes;
  for (const std::string_view record : records(all, sizeof(TokenId))) {
    Ids ids(record.size() / sizeof(TokenId));
    std::memcpy(ids.data(), record.data(), record.size());
    const std::string text = tokenizer.decode(ids, options);
    TextStream stream(tokenizer, options);
    std::string streamed;
    for (const TokenId id : ids) streamed += stream.add(id);
    streamed += stream.finish();
    TROUPE_CHECK(streamed == text, "streamed:", streamed, "at once:", text);
    put_record(bytes, text.data(), text.size(), 1);
  }
  Fs fs;
  publish_file(fs, out, bytes);
}

void bench(const Tokenizer& tokenizer, const std::string& in, int64_t threads, int times) {
  const std::string all = read_file(in);
  const std::vector<std::string_view> texts = records(all, 1);
  for (int i = 0; i < times; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const std::vector<Ids> ids = encode_all(tokenizer, texts, pool_of(threads));
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
    std::cout << seconds.count() << '\n';
  }
}

void train(const std::vector<std::string>& args) {
  const std::string all = read_file(args[4]);
  const std::vector<std::string_view> texts = records(all, 1);
  BpeTraining settings{.vocab = std::stoll(args[2]), .pattern = args[3]};
  Fs fs;
  publish_file(fs, args[5], train_bpe(texts, settings, pool_of(std::stoll(args[6]))));
}

int run(const std::vector<std::string>& args) {
  if (args.size() == 7 && args[1] == "train") return train(args), 0;
  if (args.size() < 3) return 2;
  const auto tokenizer = open_tokenizer(args[2]);
  if (args[1] == "show") {
    const SpecialIds special = tokenizer->special();
    std::cout << tokenizer->kind() << ' ' << tokenizer->vocab_size() << ' ' << special.bos << ' '
              << special.eos << ' ' << special.pad << ' ' << special.unk << '\n';
    for (const std::string& line : tokenizer->warnings()) std::cout << line << '\n';
    return 0;
  }
  if (args.size() < 5) return 2;
  if (args[1] == "encode") encode(*tokenizer, args[3], args[4], args.size() == 5);
  if (args[1] == "decode") decode(*tokenizer, args[3], args[4], args.size() > 5);
  if (args[1] == "bench") bench(*tokenizer, args[3], std::stoll(args[4]), std::stoi(args[5]));
  return 0;
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  try {
    return troupe::run({argv, argv + argc});
  } catch (const std::exception& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
