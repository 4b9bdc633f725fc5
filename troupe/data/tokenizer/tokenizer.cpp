#include "troupe/data/tokenizer/tokenizer.h"

#include "troupe/core/check.h"

namespace troupe {

std::string TextStream::add(TokenId id) {
  ids_.push_back(id);
  const std::span<const TokenId> waiting = std::span(ids_).subspan(first_ids_);
  return tokenizer_.open_ended(waiting, options_) ? std::string() : flush();
}

std::string TextStream::finish() {
  std::string rest = flush();
  ids_.clear();
  first_ids_ = first_bytes_ = 0;
  return rest;
}

std::string TextStream::flush() {
  std::string text = tokenizer_.decode(ids_, options_);
  if (first_bytes_ > 0) {
    ids_.resize(first_ids_);
    return text.substr(first_bytes_);
  }
  first_ids_ = ids_.size();
  first_bytes_ = text.size();
  return text;
}

std::vector<std::string> spelled(const Tokenizer& tokenizer, std::span<const TokenId> ids) {
  TextStream stream(tokenizer);
  std::vector<std::string> out;
  for (const TokenId id : ids) out.push_back(stream.add(id));
  if (!out.empty()) out.back() += stream.finish();
  return out;
}

void require_fits(const Tokenizer& tokenizer, int64_t model_vocab, const std::string& place) {
  if (tokenizer.vocab_size() <= model_vocab) return;
  fail(Code::kVocabTooLarge, place, "the tokenizer has", tokenizer.vocab_size(),
       "tokens and the model's vocabulary", model_vocab, "; set model.vocab to at least",
       tokenizer.vocab_size(), "or choose the tokenizer that the model was made with");
}

}  // namespace troupe
