// The one file that knows PCRE2.
#include "troupe/data/tokenizer/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <ctime>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/data/tokenizer/unicode.h"

namespace troupe {
namespace {

template <class T, void (*kFree)(T*)>
struct Free {
  void operator()(T* p) const { kFree(p); }
};
using Code8 = std::unique_ptr<pcre2_code, Free<pcre2_code, pcre2_code_free>>;
using MatchData = std::unique_ptr<pcre2_match_data, Free<pcre2_match_data, pcre2_match_data_free>>;
using MatchContext =
    std::unique_ptr<pcre2_match_context, Free<pcre2_match_context, pcre2_match_context_free>>;
using CompileContext =
    std::unique_ptr<pcre2_compile_context, Free<pcre2_compile_context, pcre2_compile_context_free>>;
using JitStack = std::unique_ptr<pcre2_jit_stack, Free<pcre2_jit_stack, pcre2_jit_stack_free>>;

constexpr size_t kFirstStack = size_t{32} << 10, kMostStack = size_t{8} << 20;
// Limits of one attempt, from one place of the text; sound patterns need less than two a character.
constexpr uint32_t kMostSteps = 20000000, kLeastSteps = 100000, kStepsPerByte = 4;
constexpr std::string_view kCallout = "(?C)";

// This thread's time: neither another program's load nor a stop of the machine counts.
double thread_seconds() {
  constexpr double kNano = 1e-9;
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + kNano * static_cast<double>(now.tv_nsec);
}

// How long a text may take. Between two callouts is what PCRE2 bounds by its steps, or one run
// over characters of the text.
struct Guard {
  static constexpr int64_t kBetweenLooks = 256;  // callouts; a look at the clock takes 0.2 us

  double allowed = Regex::kBaseSeconds, end = 0;
  int64_t callouts = 0;

  void begin(size_t bytes) {
    allowed = Regex::kBaseSeconds + Regex::kSecondsPerByte * static_cast<double>(bytes);
    callouts = 0;
  }
  bool is_over() {
    if (++callouts % kBetweenLooks != 0) return false;
    const double now = thread_seconds();
    if (callouts == kBetweenLooks) end = now + allowed;
    return now > end;
  }
};

int on_callout(pcre2_callout_block*, void* guard) {
  return static_cast<Guard*>(guard)->is_over() ? PCRE2_ERROR_CALLOUT : 0;
}

// White_Space, as ranges for brackets, and all else.
constexpr std::string_view kSpace =
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}"
    "\\x{205F}\\x{3000}";
constexpr std::string_view kNoSpace =
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}"
    "\\x{200B}-\\x{2027}\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-"
    "\\x{10FFFF}";
constexpr std::string_view kCircledLetters =
    "\\x{24B6}-\\x{24E9}\\x{1F130}-\\x{1F149}\\x{1F150}-\\x{1F169}\\x{1F170}-\\x{1F189}";

std::string word_ranges() {
  return "\\p{L}\\p{M}\\p{N}\\p{Pc}" + std::string(kCircledLetters) +
         newer_characters(kLetter | kMark | kNumber);
}

class Rewriter {
 public:
  Rewriter(const std::string& pattern, const std::string& place) : in_(pattern), place_(place) {}

  std::string run() {
    while (at_ < in_.size()) step();
    return std::move(out_);
  }

 private:
  // The next part; before what is repeated, a callout. In a group that repeats, PCRE2 counts each
  // repetition as a step.
  void step() {
    const size_t begin = in_class_ ? class_begin_ : out_.size();
    class_begin_ = begin;
    if (take() && !in_class_ && quantifier_size() > 0) out_.insert(begin, kCallout);
  }

  // Characters of the *, +, {n}, {n,} or {n,m} that follows; 0: none does.
  size_t quantifier_size() const {
    if (at_ >= in_.size()) return 0;
    if (in_[at_] == '*' || in_[at_] == '+') return 1;
    const size_t end = in_[at_] == '{' ? in_.find_first_not_of("0123456789,", at_ + 1) : 0;
    const bool is_one = end < in_.size() && end > at_ + 1 && in_[end] == '}';
    return is_one ? end + 1 - at_ : 0;
  }

  // True: it was a character, an escape or the end of a class, which may be repeated.
  bool take() {
    const char c = in_[at_];
    if (c == '\\') return escape(), true;
    if (in_class_) {
      if (c == '[' && in_.substr(at_, 2) != "[:") refuse("brackets within brackets");
      if (in_.substr(at_, 2) == "&&") refuse("&& within brackets");
      if (c == '[') return copy_through(":]"), false;
      if (c == ']') in_class_ = false;
      return copy(character_size()), true;
    }
    if (c == '[') {
      in_class_ = true;
      copy(in_.substr(at_, 2) == "[^" ? 2 : 1);
      if (at_ < in_.size() && in_[at_] == ']') copy(1);  // the first one is a character
      return false;
    }
    if (const size_t size = quantifier_size(); size > 0) return copy(size), false;
    if (in_.substr(at_, 3) == "(?#") return copy_through(")"), false;
    if (in_.substr(at_, 2) == "(?") check_flags();
    copy(character_size());
    return c != ')' && c != '(' && c != '?';
  }

  size_t character_size() const {
    size_t end = at_ + 1;
    while (end < in_.size() && (static_cast<unsigned char>(in_[end]) & 0xC0) == 0x80) ++end;
    return end - at_;
  }

  void check_flags() {
    for (size_t i = at_ + 2; i < in_.size() && (isalpha(in_[i]) != 0 || in_[i] == '-'); ++i) {
      // `m` lets a dot match line ends in one dialect, and ^ and $ match beside them in another.
      if (in_[i] != 'i' && in_[i] != '-' && in_[i] != 'P') refuse("a flag other than i");
    }
  }

  void escape() {
    if (at_ + 1 == in_.size()) refuse("a backslash at the end");
    const char c = in_[at_ + 1];
    switch (c) {
      case 's': return put_class(kSpace, false, 2);
      case 'S': return in_class_ ? put(kNoSpace, 2) : put_class(kSpace, true, 2);
      case 'w': return put_class(word_ranges(), false, 2);
      case 'W': return put_class(word_ranges(), true, 2);
      case 'd': return put_class(property("Nd"), false, 2);
      case 'D': return put_class(property("Nd"), true, 2);
      case 'p':
      case 'P': return named_property(c == 'P');
      case 'u': return hex_digits();
      default:
        if (std::string_view("hHXRKGyYONkgzZAbBCQE").find(c) != std::string_view::npos) {
          refuse(std::string("\\") + c);
        }
        copy(2);
    }
  }

  static std::string property(const std::string& name) {
    return "\\p{" + name + "}" + newer_characters(category_bits(name));
  }

  void named_property(bool negated) {
    const size_t open = at_ + 2, end = in_.find('}', at_);
    if (open >= in_.size() || in_[open] != '{') {  // \pL
      if (open >= in_.size()) refuse("\\p at the end");
      return put_class(property(std::string(1, in_[open])), negated, 3);
    }
    if (end == std::string_view::npos) refuse("\\p{ without }");
    std::string name(in_.substr(open + 1, end - open - 1));
    if (name.starts_with('^')) {
      name.erase(0, 1);
      negated = !negated;
    }
    put_class(property(name), negated, end + 1 - at_);
  }

  void hex_digits() {
    constexpr size_t kDigits = 4;
    if (at_ + 2 + kDigits > in_.size()) refuse("\\u without four digits");
    put("\\x{" + std::string(in_.substr(at_ + 2, kDigits)) + "}", 2 + kDigits);
  }

  void put_class(const std::string_view ranges, bool negated, size_t taken) {
    if (in_class_ && negated) refuse("a negated class within brackets");
    if (in_class_) return put(ranges, taken);
    put((negated ? "[^" : "[") + std::string(ranges) + "]", taken);
  }

  void put(std::string_view text, size_t taken) {
    out_ += text;
    at_ += taken;
  }
  void copy(size_t n) { put(in_.substr(at_, n), n); }
  void copy_through(std::string_view end) {
    const size_t found = in_.find(end, at_);
    copy(found == std::string_view::npos ? 1 : found + end.size() - at_);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail(Code::kBadTokenizer, place_, "the pattern", to_text(std::string(in_)), "has", what,
         "at byte", at_, ", which is not supported");
  }

  const std::string_view in_;
  const std::string& place_;
  size_t at_ = 0;
  bool in_class_ = false;
  size_t class_begin_ = 0;  // in out_
  std::string out_;
};

std::string message_of(int error) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(error, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

}  // namespace

std::string pcre2_pattern(const std::string& pattern, const std::string& place) {
  return std::string(kCallout) + Rewriter(pattern, place).run();
}

struct Regex::Scratch::Parts {
  MatchContext context{pcre2_match_context_create(nullptr)};
  JitStack stack{pcre2_jit_stack_create(kFirstStack, kMostStack, nullptr)};
  MatchData data{pcre2_match_data_create(1, nullptr)};
  Guard guard;
};

Regex::Scratch::Scratch() : parts_(std::make_unique<Parts>()) {
  if (!parts_->context || !parts_->stack || !parts_->data) throw std::bad_alloc();
  pcre2_set_match_limit(parts_->context.get(), kMostSteps);
  pcre2_set_callout(parts_->context.get(), on_callout, &parts_->guard);
  pcre2_jit_stack_assign(parts_->context.get(), nullptr, parts_->stack.get());
}
Regex::Scratch::Scratch(Scratch&&) noexcept = default;
Regex::Scratch::~Scratch() = default;

struct Regex::Parts {
  std::string pattern, place;
  Code8 code;
  bool jit = false;
};

Regex::Regex(const std::string& pattern, const std::string& place)
    : parts_(std::make_unique<Parts>(Parts{pattern, place, nullptr})) {
  const std::string rewritten = pcre2_pattern(pattern, place);
  const CompileContext context(pcre2_compile_context_create(nullptr));
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  constexpr uint32_t kOptions = PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NO_AUTO_CAPTURE;
  parts_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rewritten.data()), rewritten.size(),
                                   kOptions, &error, &offset, context.get()));
  if (!parts_->code) {
    fail(Code::kBadTokenizer, place, "the pattern", to_text(pattern),
         "is not understood: " + message_of(error));
  }
  parts_->jit = pcre2_jit_compile(parts_->code.get(), PCRE2_JIT_COMPLETE) == 0;
}
Regex::Regex(Regex&&) noexcept = default;
Regex::~Regex() = default;

std::string Regex::quoted(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (std::string_view("\\^$.[]|()?*+{}-#&").find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

bool Regex::find(std::string_view text, size_t from, Scratch& scratch, Match& match) const {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  pcre2_match_data* data = scratch.parts_->data.get();
  pcre2_match_context* context = scratch.parts_->context.get();
  const int found = parts_->jit ? pcre2_jit_match(parts_->code.get(), subject, text.size(), from, 0,
                                                  data, context)
                                : pcre2_match(parts_->code.get(), subject, text.size(), from,
                                              PCRE2_NO_UTF_CHECK, data, context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0) {
    const std::string why = found == PCRE2_ERROR_CALLOUT
                                ? "it takes far longer than sound patterns do"
                                : message_of(found);
    fail(Code::kSlowPattern, parts_->place, "the pattern", to_text(parts_->pattern),
         "gives up at byte", from, "of a text of", text.size(), "bytes:", why);
  }
  const PCRE2_SIZE* ends = pcre2_get_ovector_pointer(data);
  match = {ends[0], ends[1]};
  return true;
}

void Regex::begin_text(std::string_view text, Scratch& scratch) {
  scratch.parts_->guard.begin(text.size());
  const size_t most = kLeastSteps + kStepsPerByte * text.size();
  pcre2_set_match_limit(scratch.parts_->context.get(),
                        static_cast<uint32_t>(std::min<size_t>(most, kMostSteps)));
}

size_t Regex::next_character(std::string_view text, size_t at) {
  do {
    ++at;
  } while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xC0) == 0x80);
  return at;
}

}  // namespace troupe
