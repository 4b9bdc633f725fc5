#include "apps/print.h"

#include <cstdarg>
#include <cstdio>

#include "troupe/core/check.h"

namespace troupe {

void print_text(const char* format, ...) {
  va_list values, again;
  va_start(values, format);
  va_copy(again, values);
  std::string text(static_cast<size_t>(std::vsnprintf(nullptr, 0, format, values)), '\0');
  std::vsnprintf(text.data(), text.size() + 1, format, again);
  va_end(again);
  va_end(values);
  std::cout << text;
}

void print_tokens(const TokenSummary& s) {
  std::cout << s.path << ".bin  " << with_commas(s.tokens) << " tokens of type " << s.type << ", "
            << readable_bytes(s.bytes) << '\n'
            << "documents  " << with_commas(s.documents) << ", in " << with_commas(s.sequences)
            << " sequences";
  if (s.empty > 0) std::cout << ", " << with_commas(s.empty) << " of them empty";
  std::cout << "\nlengths    " << s.shortest << " to " << with_commas(s.longest) << ", median "
            << with_commas(s.median) << " tokens\n";
  if (!s.contiguous) std::cout << "gaps       between sequences in the .bin\n";
  if (s.modes) std::cout << "modes      of a multimodal data set; they are not read\n";
  if (s.weights) std::cout << "weights    beside it: which tokens are learned\n";
  if (s.scan) {
    std::cout << "ids        " << s.scan->smallest << " to " << s.scan->largest << ", "
              << with_commas(s.scan->distinct) << " different, " << with_commas(s.scan->learned)
              << " tokens are learned\n";
  }
  if (s.built) {
    std::cout << "tokenizer  " << s.built->tokenizer << ", " << with_commas(s.built->vocab)
              << " ids; " << with_commas(s.built->skipped) << " documents were skipped\n";
  }
  std::cout << (s.scan ? "ok: every token read\n" : "ok: the index alone was read\n");
}

void print_logits(const LogitsCheck& check) {
  std::cout
      << "logits of " << check.positions
      << " tokens by this program from both folders (transformers was not run): max difference "
      << to_text(check.max_difference) << (check.equal ? ", the same bits" : "")
      << "; mean difference " << to_text(check.mean_difference) << " of a mean of "
      << fixed(check.mean, 3) << '\n';
}

void require_logits(const LogitsCheck& check, FolderWeights weights, const std::string& place) {
  if (within_tolerance(check, weights)) return;
  const bool rounded = weights == FolderWeights::kRounded;
  fail(Code::kStateMismatch, place, "the logits differ by", check.mean_difference,
       "in the mean, where theirs is", check.mean,
       rounded ? "and rounding moves them by 5 % at most" : "and no weight was rounded");
}

}  // namespace troupe
