#include "troupe/data/tokenizer/decoder.h"

#include <algorithm>
#include <charconv>
#include <memory>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/tokenizer/byte_level.h"
#include "troupe/data/tokenizer/json_node.h"
#include "troupe/data/tokenizer/normalizer.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {
namespace {

using Tokens = std::vector<std::string>;

std::string joined_tokens(const Tokens& tokens) {
  std::string out;
  for (const std::string& token : tokens) out += token;
  return out;
}

size_t total_bytes(const Tokens& tokens) {
  size_t out = 0;
  for (const std::string& token : tokens) out += token.size();
  return out;
}

void join_bytes(Tokens& tokens, size_t) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += bytes_of_token(token);
  tokens = {repaired_utf8(bytes)};
}

// A run of byte tokens is their text, or one U+FFFD each if it is none.
void fall_back(Tokens& tokens, size_t) {
  Tokens out;
  std::string run;
  const auto end_run = [&] {
    if (is_utf8(run)) {
      out.push_back(run);
    } else {
      out.insert(out.end(), run.size(), std::string(kReplacement));
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    const int byte = byte_of_token(token);
    if (byte >= 0) {
      run.push_back(static_cast<char>(byte));
      continue;
    }
    if (!run.empty()) end_run();
    out.push_back(std::move(token));
  }
  if (!run.empty()) end_run();
  tokens = std::move(out);
}

Decoder::Step read_replace(const JsonNode& node) {
  node.only({"type", "pattern", "content"});
  const auto pattern = std::make_shared<Regex>(read_pattern(node.at("pattern")));
  return [pattern, by = node.text("content"), place = node.place()](Tokens& tokens, size_t most) {
    size_t made = 0;
    Regex::Scratch scratch;
    for (std::string& token : tokens) {
      std::string out;
      size_t done = 0;
      pattern->for_each(token, scratch, [&](size_t begin, size_t end) {
        if (made + out.size() > most) return;
        out.append(token, done, begin - done).append(by);
        done = end;
      });
      token = out.append(token, done);
      made += token.size();
      if (made > most) {
        fail(Code::kBadTokenizer, place, "makes more than", most, "bytes of", tokens.size(),
             "tokens");
      }
    }
  };
}

// Takes up to `most` of a character from the front of each token.
Decoder::Step read_strip(const JsonNode& node) {
  node.only({"type", "content", "start", "stop"});
  const std::string content = node.text("content");
  if (content.empty() || utf8_at(content, 0).bytes != content.size()) {
    node.refuse("has the content", to_text(content), "where one character is expected");
  }
  if (node.at("stop").integer() != 0) {
    node.at("stop").refuse(
        "is", node.at("stop").integer(),
        "and only 0 is supported: text that comes bit by bit has no end to strip");
  }
  return [content, most = node.at("start").integer()](Tokens& tokens, size_t) {
    for (std::string& token : tokens) {
      size_t cut = 0;
      for (int64_t i = 0; i < most && token.compare(cut, content.size(), content) == 0; ++i) {
        cut += content.size();
      }
      token.erase(0, cut);
    }
  };
}

Decoder::Step read_metaspace(const JsonNode& node) {
  node.only({"type", "replacement", "prepend_scheme", "add_prefix_space", "split", "str_rep"});
  const std::string mark = node.character("replacement");
  const bool prepends = node.has("prepend_scheme") ? node.text("prepend_scheme") != "never"
                                                   : node.flag("add_prefix_space", true);
  return [mark, prepends](Tokens& tokens, size_t) {
    bool first = true;
    for (std::string& token : tokens) {
      std::string out;
      for (size_t at = 0; at < token.size();) {
        const size_t end = std::min(token.find(mark, at), token.size());
        out.append(token, at, end - at);
        if (end < token.size() && !(first && prepends)) out += ' ';
        at = end + mark.size();
      }
      token = std::move(out);
      first = false;
    }
  };
}

}  // namespace

std::string bytes_of_token(const std::string& token) {
  std::string bytes;
  return from_byte_alphabet(token, bytes) ? bytes : token;
}

int byte_of_token(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token.back() != '>') return -1;
  int byte = -1;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  return error == std::errc() && end == token.data() + 5 && byte >= 0 ? byte : -1;
}

Decoder::Decoder(const JsonNode& node) {
  joined_ = true;
  add(node);
}

Decoder Decoder::byte_level() {
  Decoder out;
  out.joined_ = out.joins_bytes_ = true;
  out.steps_.emplace_back(join_bytes);
  return out;
}

void Decoder::add(const JsonNode& node) {
  const std::string type = node.text("type");
  if (steps_.size() == kMostTextSteps) node.refuse("is one more than", kMostTextSteps, "decoders");
  if (type == "Sequence") {
    node.only({"type", "decoders"});
    for (const JsonNode& step : node.items("decoders")) add(step);
  } else if (type == "ByteLevel") {
    node.only({"type", "add_prefix_space", "trim_offsets", "use_regex"});
    joins_bytes_ = true;
    steps_.emplace_back(join_bytes);
  } else if (type == "ByteFallback") {
    node.only({"type"});
    joins_byte_tokens_ = true;
    steps_.emplace_back(fall_back);
  } else if (type == "Fuse") {
    node.only({"type"});
    steps_.emplace_back([](Tokens& tokens, size_t) { tokens = {joined_tokens(tokens)}; });
  } else if (type == "Metaspace") {
    steps_.push_back(read_metaspace(node));
  } else if (type == "Replace") {
    steps_.push_back(read_replace(node));
  } else if (type == "Strip") {
    steps_.push_back(read_strip(node));
  } else {
    node.refuse("is of type", type,
                "which is not supported: there are ByteLevel, ByteFallback, Fuse, Metaspace, "
                "Replace, Strip, Sequence");
  }
}

std::string Decoder::run(std::vector<std::string> tokens) const {
  if (!joined_) {
    std::string out;
    for (size_t i = 0; i < tokens.size(); ++i) out += (i == 0 ? "" : " ") + tokens[i];
    return out;
  }
  const size_t most = most_after_steps(total_bytes(tokens));
  for (const Decoder::Step& step : steps_) step(tokens, most);
  return joined_tokens(tokens);
}

}  // namespace troupe
