#include "troupe/data/tokenizer/pre_tokenizer.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/json_node.h"
#include "troupe/data/tokenizer/normalizer.h"
#include "troupe/data/tokenizer/patterns.h"
#include "troupe/data/tokenizer/splitter.h"
#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/data/tokenizer/unicode.h"

namespace troupe {
namespace {

// How a pattern splits text: which pieces its matches and the text between them become.
enum class Behavior { kRemoved, kIsolated, kMergedWithPrevious, kMergedWithNext, kContiguous };

constexpr auto names_of(Behavior) {
  return std::array{Named{"Removed", Behavior::kRemoved}, Named{"Isolated", Behavior::kIsolated},
                    Named{"MergedWithPrevious", Behavior::kMergedWithPrevious},
                    Named{"MergedWithNext", Behavior::kMergedWithNext},
                    Named{"Contiguous", Behavior::kContiguous}};
}

Behavior read_behavior(const JsonNode& node) {
  Behavior out{};
  const JsonNode value = node.at("behavior");
  if (!from_text(value.text(), out)) {
    value.refuse("is", to_text(value.text()) + ",", expectation("", out).wanted, "is expected");
  }
  return out;
}

// Puts parts of one piece together as they come: first to last, match or not.
class Joiner {
 public:
  Joiner(Behavior behavior, std::vector<Cut>& out)
      : behavior_(behavior), out_(out), first_(out.size()) {}

  void add(const Cut& cut, bool match) {
    const bool joins = out_.size() > first_ && joins_before(match);
    if (joins) {
      out_.back().end = cut.end;
    } else if (!(behavior_ == Behavior::kRemoved && match)) {
      out_.push_back(cut);
    }
    before_ = match;
  }

  // Drops what is empty; a match of nothing may have left it.
  void finish() {
    size_t kept = first_;
    for (size_t i = first_; i < out_.size(); ++i) {
      if (out_[i].begin < out_[i].end) out_[kept++] = out_[i];
    }
    out_.resize(kept);
  }

 private:
  bool joins_before(bool match) const {
    switch (behavior_) {
      case Behavior::kContiguous: return match == before_;
      case Behavior::kMergedWithPrevious: return match && !before_;
      case Behavior::kMergedWithNext: return !match && before_;
      default: return false;
    }
  }

  const Behavior behavior_;
  std::vector<Cut>& out_;
  const size_t first_;
  bool before_ = false;
};

// A step that cuts each piece where matches(piece, scratch, f) calls f(begin, end).
template <class Matches>
PreTokenizer::Step cut_step(Behavior behavior, bool invert, const Matches& matches) {
  return [behavior, invert, matches](Pieces& p, Regex::Scratch& scratch) {
    p.next.clear();
    for (const Cut& cut : p.cuts) {
      Joiner joiner(behavior, p.next);
      const std::string_view piece = p.piece(cut);
      size_t done = 0;
      matches(piece, scratch, [&](size_t begin, size_t end) {
        if (done < begin) joiner.add({cut.begin + done, cut.begin + begin}, invert);
        joiner.add({cut.begin + begin, cut.begin + end}, !invert);
        done = end;
      });
      if (done < piece.size()) joiner.add({cut.begin + done, cut.end}, invert);
      joiner.finish();
    }
    std::swap(p.cuts, p.next);
  };
}

// Each character of a kind is a match.
template <class Is>
auto characters(Is is) {
  return [is](std::string_view piece, Regex::Scratch&, auto&& f) {
    for (size_t at = 0; at < piece.size();) {
      const Utf8Char c = utf8_at(piece, at);
      if (is(c.code)) f(at, at + c.bytes);
      at += c.bytes;
    }
  };
}

// A pattern: by its own scanner where it is a well-known one, else by PCRE2. Every match is a
// piece.
PreTokenizer::Step isolate(const std::string& pattern, const std::string& place) {
  if (const Splitter scan = splitter_of(pattern)) {
    return [scan](Pieces& p, Regex::Scratch&) {
      p.next.clear();
      for (const Cut& cut : p.cuts) scan(p.text, cut, p.next);
      std::swap(p.cuts, p.next);
    };
  }
  const auto regex = std::make_shared<Regex>(pattern, place);
  return cut_step(Behavior::kIsolated, false,
                  [regex](std::string_view piece, Regex::Scratch& scratch, auto&& f) {
                    regex->for_each(piece, scratch, f);
                  });
}

PreTokenizer::Step read_split(const JsonNode& node) {
  node.only({"type", "pattern", "behavior", "invert"});
  const Behavior behavior = read_behavior(node);
  const bool invert = node.flag("invert");
  const JsonNode pattern = node.at("pattern");
  if (behavior == Behavior::kIsolated && pattern.has("Regex")) {
    pattern.only({"Regex"});
    return isolate(pattern.text("Regex"), pattern.at("Regex").place());
  }
  const auto regex = std::make_shared<Regex>(read_pattern(pattern));
  return cut_step(behavior, invert,
                  [regex](std::string_view piece, Regex::Scratch& scratch, auto&& f) {
                    regex->for_each(piece, scratch, f);
                  });
}

// Rewrites the text piece by piece: put(piece, out) adds what it becomes.
template <class Put>
void rewrite(Pieces& p, Put put) {
  std::string out;
  out.reserve(p.text.size() + p.text.size() / 2);
  for (Cut& cut : p.cuts) {
    const size_t begin = out.size();
    if (begin <= p.most) put(p.piece(cut), out);
    cut = {begin, out.size()};
  }
  p.storage = std::move(out);
  p.text = p.storage;
}

PreTokenizer::Step prefix_space() {
  return [](Pieces& p, Regex::Scratch&) {
    rewrite(p, [](std::string_view piece, std::string& out) {
      if (!piece.starts_with(' ')) out += ' ';
      out += piece;
    });
  };
}

enum class Prepend { kFirst, kAlways, kNever };

constexpr auto names_of(Prepend) {
  return std::array{Named{"first", Prepend::kFirst}, Named{"always", Prepend::kAlways},
                    Named{"never", Prepend::kNever}};
}

PreTokenizer::Step mark_spaces(const std::string& mark, Prepend prepend) {
  return [mark, prepend](Pieces& p, Regex::Scratch&) {
    bool first = p.at_start && !p.cuts.empty() && p.cuts[0].begin == 0;
    rewrite(p, [&](std::string_view piece, std::string& out) {
      const bool wants = prepend == Prepend::kAlways || (prepend == Prepend::kFirst && first);
      first = false;
      if (wants && !piece.starts_with(' ') && !piece.starts_with(mark)) out += mark;
      for (size_t at = 0; at < piece.size();) {
        const size_t end = std::min(piece.find(' ', at), piece.size());
        out.append(piece.substr(at, end - at));
        if (end < piece.size()) out += mark;
        at = end + 1;
      }
    });
  };
}

Prepend read_prepend(const JsonNode& node) {
  if (!node.has("prepend_scheme")) {  // files older than the field have a flag
    return node.flag("add_prefix_space", true) ? Prepend::kAlways : Prepend::kNever;
  }
  Prepend out{};
  const JsonNode value = node.at("prepend_scheme");
  if (!from_text(value.text(), out)) {
    value.refuse("is", to_text(value.text()) + ",", expectation("", out).wanted, "is expected");
  }
  return out;
}

void add_metaspace(const JsonNode& node, std::vector<PreTokenizer::Step>& steps) {
  node.only({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
  const std::string mark = node.character("replacement");
  steps.push_back(mark_spaces(mark, read_prepend(node)));
  if (!node.flag("split", true)) return;
  steps.push_back(cut_step(Behavior::kMergedWithNext, false,
                           [mark](std::string_view piece, Regex::Scratch&, auto&& f) {
                             for (size_t at = 0; (at = piece.find(mark, at)) < piece.size();) {
                               f(at, at + mark.size());
                               at += mark.size();
                             }
                           }));
}

bool is_punctuation(char32_t c) {
  if (c < 0x80) return ispunct(static_cast<int>(c)) != 0;
  return (category_of(c) & kPunctuation) != 0;
}

PreTokenizer::Step read_punctuation(const JsonNode& node) {
  node.only({"type", "behavior"});
  const Behavior behavior = node.has("behavior") ? read_behavior(node) : Behavior::kIsolated;
  return cut_step(behavior, false, characters(is_punctuation));
}

PreTokenizer::Step read_digits(const JsonNode& node) {
  node.only({"type", "individual_digits"});
  const Behavior behavior =
      node.flag("individual_digits") ? Behavior::kIsolated : Behavior::kContiguous;
  return cut_step(behavior, false,
                  characters([](char32_t c) { return (category_of(c) & kNumber) != 0; }));
}

// Words, and runs of what is neither a word nor white space.
PreTokenizer::Step whitespace_step() {
  const auto kind = [](char32_t c) { return is_space(c) ? 0 : is_word(c) ? 1 : 2; };
  return [kind](Pieces& p, Regex::Scratch&) {
    p.next.clear();
    for (const Cut& cut : p.cuts) {
      int before = 0;
      for (size_t at = cut.begin; at < cut.end;) {
        const Utf8Char c = utf8_at(p.text, at);
        const int now = kind(c.code);
        if (now != 0 && now == before) {
          p.next.back().end = at + c.bytes;
        } else if (now != 0) {
          p.next.push_back({at, at + c.bytes});
        }
        before = now;
        at += c.bytes;
      }
    }
    std::swap(p.cuts, p.next);
  };
}

PreTokenizer::Step read_delimiter(const JsonNode& node) {
  node.only({"type", "delimiter"});
  const std::string text = node.text("delimiter");
  if (text.empty() || utf8_at(text, 0).bytes != text.size()) {
    node.refuse("has the delimiter", to_text(text), "where one character is expected");
  }
  return cut_step(Behavior::kRemoved, false,
                  characters([c = utf8_at(text, 0).code](char32_t other) { return c == other; }));
}

}  // namespace

void Pieces::reset(std::string_view all, bool is_at_start) {
  text = all;
  at_start = is_at_start;
  cuts.assign(all.empty() ? 0 : 1, Cut{0, all.size()});
  most = most_after_steps(all.size());
}

PreTokenizer::PreTokenizer(const JsonNode& node) : place_(node.place()) {
  add(node);
}

void PreTokenizer::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (steps_.size() >= kMostTextSteps) {
    node.refuse("is one more than", kMostTextSteps, "pre-tokenizers");
  }
  if (type == "Sequence") {
    node.only({"type", "pretokenizers"});
    for (const JsonNode& step : node.items("pretokenizers")) add(step);
    return;
  }
  if (byte_level_) node.refuse("follows ByteLevel, which must be the last pre-tokenizer");
  if (type == "ByteLevel") {
    add_byte_level(node);
  } else if (type == "Split") {
    steps_.push_back(read_split(node));
  } else if (type == "Metaspace") {
    add_metaspace(node, steps_);
  } else if (type == "Digits") {
    steps_.push_back(read_digits(node));
  } else if (type == "Punctuation") {
    steps_.push_back(read_punctuation(node));
  } else if (type == "Whitespace") {
    node.only({"type"});
    steps_.push_back(whitespace_step());
  } else if (type == "WhitespaceSplit") {
    node.only({"type"});
    steps_.push_back(cut_step(Behavior::kRemoved, false, characters(is_space)));
  } else if (type == "CharDelimiterSplit") {
    steps_.push_back(read_delimiter(node));
  } else {
    node.refuse("is of type", type,
                "which is not supported: there are ByteLevel, Split, Metaspace, Digits, "
                "Punctuation, Whitespace, WhitespaceSplit, CharDelimiterSplit, Sequence");
  }
}

void PreTokenizer::add_byte_level(const JsonNode& node) {
  node.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
  if (node.flag("add_prefix_space", true)) steps_.push_back(prefix_space());
  if (node.flag("use_regex", true))
    steps_.push_back(isolate(std::string(kGpt2Pattern), node.place()));
  byte_level_ = true;
}

PreTokenizer PreTokenizer::pattern(const std::string& regex, const std::string& place) {
  PreTokenizer out;
  out.steps_.push_back(isolate(regex, place));
  out.byte_level_ = true;
  return out;
}

void PreTokenizer::run(Pieces& pieces, Regex::Scratch& scratch) const {
  const size_t bytes = pieces.text.size();
  for (const PreTokenizer::Step& step : steps_) {
    step(pieces, scratch);
    if (pieces.text.size() > pieces.most) {
      fail(Code::kBadTokenizer, place_, "makes more than", pieces.most, "bytes of a text of",
           bytes);
    }
  }
}

}  // namespace troupe
