#include "troupe/data/tokenizer/normalizer.h"

#include <map>
#include <memory>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/json_node.h"
#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/data/tokenizer/unicode.h"

namespace troupe {
namespace {

Normalizer::Step normal_form(NormalForm form) {
  return [form](std::string_view text, std::string& out, Regex::Scratch&, size_t) {
    return normalize(form, text, out);
  };
}

// Each character becomes what `put` adds for it.
template <class F>
Normalizer::Step by_character(F put) {
  return [put](std::string_view text, std::string& out, Regex::Scratch&, size_t) {
    std::string result;
    result.reserve(text.size());
    for (size_t at = 0; at < text.size();) {
      const Utf8Char c = utf8_at(text, at);
      put(result, c.code);
      at += c.bytes;
    }
    return out = std::move(result), true;
  };
}

Normalizer::Step strip(bool left, bool right) {
  return [left, right](std::string_view text, std::string& out, Regex::Scratch&, size_t) {
    while (left && !text.empty() && is_space(utf8_at(text, 0).code)) {
      text.remove_prefix(utf8_at(text, 0).bytes);
    }
    while (right && !text.empty()) {
      const size_t last = utf8_before(text, text.size());
      if (!is_space(utf8_at(text, last).code)) break;
      text = text.substr(0, last);
    }
    return out = std::string(text), true;
  };
}

Normalizer::Step prepend(std::string prefix) {
  return [prefix](std::string_view text, std::string& out, Regex::Scratch&, size_t) {
    if (text.empty()) return false;
    return out = prefix + std::string(text), true;
  };
}

Normalizer::Step replace(Regex pattern, std::string by) {
  const auto shared = std::make_shared<Regex>(std::move(pattern));  // steps are copied
  return
      [shared, by](std::string_view text, std::string& out, Regex::Scratch& scratch, size_t most) {
        std::string result;
        size_t done = 0;
        shared->for_each(text, scratch, [&](size_t begin, size_t end) {
          if (result.size() > most) return;
          result.append(text.substr(done, begin - done)).append(by);
          done = end;
        });
        if (done == 0 && result.empty()) return false;
        return out = std::move(result.append(text.substr(done))), true;
      };
}

// A string, the usual case, without a regular expression.
Normalizer::Step replace_text(std::string what, std::string by) {
  return [what, by](std::string_view text, std::string& out, Regex::Scratch&, size_t most) {
    size_t found = text.find(what);
    if (found == std::string_view::npos) return false;
    std::string result;
    result.reserve(text.size() + text.size() / 2);
    size_t done = 0;
    for (; found != std::string_view::npos && result.size() <= most;
         found = text.find(what, done)) {
      result.append(text.substr(done, found - done)).append(by);
      done = found + what.size();
    }
    return out = std::move(result.append(text.substr(done))), true;
  };
}

Normalizer::Step read_replace(const JsonNode& node) {
  node.only({"type", "pattern", "content"});
  const JsonNode pattern = node.at("pattern");
  if (pattern.has("String") && !pattern.text("String").empty()) {
    pattern.only({"String"});
    return replace_text(pattern.text("String"), node.text("content"));
  }
  return replace(read_pattern(pattern), node.text("content"));
}

const std::map<std::string, Normalizer::Step>& simple_steps() {
  static const std::map<std::string, Normalizer::Step> steps = {
      {"NFC", normal_form(NormalForm::kNfc)},
      {"NFD", normal_form(NormalForm::kNfd)},
      {"NFKC", normal_form(NormalForm::kNfkc)},
      {"NFKD", normal_form(NormalForm::kNfkd)},
      {"Lowercase", by_character(append_lower)},
      {"StripAccents", by_character([](std::string& out, char32_t c) {
         if (!is_accent(c)) append_utf8(out, c);
       })},
  };
  return steps;
}

}  // namespace

Regex read_pattern(const JsonNode& node) {
  node.only({"String", "Regex"});
  const bool is_regex = node.has("Regex");
  const JsonNode text = node.at(is_regex ? "Regex" : "String");
  return {is_regex ? text.text() : Regex::quoted(text.text()), text.place()};
}

Normalizer::Normalizer(const JsonNode& node) : place_(node.place()) {
  add(node);
}

void Normalizer::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (steps_.size() == kMostTextSteps)
    node.refuse("is one more than", kMostTextSteps, "normalizers");
  if (type == "Sequence") {
    node.only({"type", "normalizers"});
    for (const JsonNode& step : node.items("normalizers")) add(step);
  } else if (const auto simple = simple_steps().find(type); simple != simple_steps().end()) {
    node.only({"type"});
    steps_.push_back(simple->second);
  } else if (type == "Strip") {
    node.only({"type", "strip_left", "strip_right"});
    steps_.push_back(strip(node.flag("strip_left"), node.flag("strip_right")));
  } else if (type == "Prepend") {
    node.only({"type", "prepend"});
    steps_.push_back(prepend(node.text("prepend")));
  } else if (type == "Replace") {
    steps_.push_back(read_replace(node));
  } else {
    node.refuse("is of type", type,
                "which is not supported: there are NFC, NFD, NFKC, NFKD, Lowercase, Strip, "
                "StripAccents, Prepend, Replace, Sequence");
  }
}

Normalizer Normalizer::mark_spaces(bool prefix) {
  const std::string mark = "\xE2\x96\x81";
  Normalizer out;
  if (prefix) out.steps_.push_back(prepend(mark));
  out.steps_.push_back(replace_text(" ", mark));
  return out;
}

std::string_view Normalizer::run(std::string_view text, std::string& storage,
                                 Regex::Scratch& scratch) const {
  const size_t bytes = text.size(), most = most_after_steps(bytes);
  for (const Normalizer::Step& step : steps_) {
    if (!step(text, storage, scratch, most)) continue;
    text = storage;
    if (text.size() > most) {
      fail(Code::kBadTokenizer, place_, "makes more than", most, "bytes of a text of", bytes);
    }
  }
  return text;
}

}  // namespace troupe
