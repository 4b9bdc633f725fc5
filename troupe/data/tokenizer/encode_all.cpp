#include "troupe/data/tokenizer/encode_all.h"

#include <atomic>

namespace troupe {

std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             const std::vector<std::string_view>& texts,
                                             const Pool& pool, const EncodeOptions& options) {
  std::vector<std::vector<TokenId>> out(texts.size());
  // A range is a thread that takes the next text for as long as there is one: so nobody waits for
  // whoever got the long ones.
  std::atomic<size_t> next = 0;
  pool(static_cast<int64_t>(texts.size()), 1, [&](int64_t, int64_t) {
    for (size_t i = next++; i < texts.size(); i = next++) {
      out[i].reserve(texts[i].size() / 3);
      tokenizer.append(texts[i], options, out[i]);
    }
  });
  return out;
}

}  // namespace troupe
