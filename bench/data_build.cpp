// `data build` with bytes as ids, for bench/data_build.py:
//   data_build WORKERS OUTPUT INPUT...
#include <sys/resource.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "troupe/core/check.h"
#include "troupe/data/build_corpus.h"

int main(int argc, char** argv) try {
  if (argc < 4) return std::fprintf(stderr, "data_build WORKERS OUTPUT INPUT...\n"), 2;
  troupe::BuildConfig config;
  config.output = argv[2];
  config.replace = true;
  config.workers = std::atoi(argv[1]);
  config.input.assign(argv + 3, argv + argc);
  const troupe::BuildTokenizer tokenizer{.encode =
                                             [](std::string_view text, std::vector<int32_t>& ids) {
                                               const size_t begin = ids.size();
                                               ids.resize(begin + text.size());
                                               for (size_t i = 0; i < text.size(); ++i) {
                                                 ids[begin + i] =
                                                     static_cast<unsigned char>(text[i]);
                                               }
                                             },
                                         .vocab = 257,
                                         .eod = 256,
                                         .fingerprint = "bytes"};
  troupe::Fs fs;
  const troupe::BuildResult result = troupe::build_corpus(config, tokenizer, fs);
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  std::printf("{\"text_bytes\": %lld, \"tokens\": %lld, \"seconds\": %.4f, \"peak_kib\": %ld}\n",
              static_cast<long long>(result.text_bytes), static_cast<long long>(result.info.tokens),
              result.seconds, usage.ru_maxrss);
  return 0;
} catch (const troupe::Error& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return static_cast<int>(error.exit_class());
}
