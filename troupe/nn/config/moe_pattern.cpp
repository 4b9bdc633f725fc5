#include "troupe/nn/config/moe_pattern.h"

#include <algorithm>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"

namespace troupe {
namespace {

class Pattern {
 public:
  Pattern(const std::string& text, int64_t layers) : whole_(text), layers_(layers) {
    std::copy_if(text.begin(), text.end(), std::back_inserter(text_),
                 [](char c) { return c != ' '; });
  }

  std::vector<bool> read() {
    std::vector<bool> out;
    do {
      const std::vector<bool> list = read_list();
      for (int64_t times = take('*') ? read_number() : 1; times > 0; --times) {
        out.insert(out.end(), list.begin(), list.end());
        if (static_cast<int64_t>(out.size()) > layers_) refuse("has too many entries");
      }
    } while (take('+'));
    if (at_ != text_.size()) refuse("cannot be read");
    if (static_cast<int64_t>(out.size()) != layers_) refuse("has too few entries");
    return out;
  }

 private:
  std::vector<bool> read_list() {
    std::vector<bool> list;
    if (!take('[')) refuse("cannot be read");
    do {
      const int64_t value = read_number();
      if (value != 0 && value != 1) refuse("has an entry other than 0 and 1");
      list.push_back(value == 1);
    } while (take(','));
    if (!take(']')) refuse("cannot be read");
    return list;
  }

  int64_t read_number() {
    const size_t begin = at_;
    while (at_ < text_.size() && '0' <= text_[at_] && text_[at_] <= '9') ++at_;
    int64_t value = 0;
    if (!from_text(std::string_view(text_).substr(begin, at_ - begin), value)) {
      refuse("cannot be read");
    }
    return value;
  }

  bool take(char c) {
    const bool here = at_ < text_.size() && text_[at_] == c;
    at_ += here;
    return here;
  }

  [[noreturn]] void refuse(const char* why) const {
    fail(Code::kBadValue, "moe.layers", "the pattern '" + whole_ + "'", why, "for", layers_,
         "layers");
  }

  std::string whole_, text_;
  int64_t layers_;
  size_t at_ = 0;
};

void require_positive(int64_t every) {
  if (every >= 1) return;
  fail(Code::kBadValue, "moe.layers", "every", every, "layers; it must be 1 or more");
}

}  // namespace

std::vector<bool> moe_layers(const std::string& pattern, int64_t layers) {
  int64_t every = 0;
  if (!from_text(pattern, every)) return Pattern(pattern, layers).read();
  require_positive(every);
  std::vector<bool> out(layers);
  for (int64_t i = 0; i < layers; ++i) out[i] = i % every == 0;
  return out;
}

bool is_in_pattern(const std::string& pattern, int64_t layer, int64_t layers) {
  int64_t every = 0;
  if (!from_text(pattern, every)) return Pattern(pattern, layers).read().at(layer);
  require_positive(every);
  return layer % every == 0;
}

}  // namespace troupe
