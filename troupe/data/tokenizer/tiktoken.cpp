#include "troupe/data/tokenizer/tiktoken.h"

#include <algorithm>
#include <array>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/text/text.h"
#include "troupe/data/tokenizer/bpe_tokenizer.h"
#include "troupe/data/tokenizer/byte_level.h"
#include "troupe/data/tokenizer/patterns.h"

namespace troupe {
namespace {

constexpr TokenId kMostId = TokenId{1} << 24;

int sextet(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  return c == '+' ? 62 : c == '/' ? 63 : -1;
}

bool from_base64(std::string_view text, std::string& out) {
  out.clear();
  if (text.empty() || text.size() % 4 != 0) return false;
  while (text.ends_with('=') && text.size() % 4 != 2) text.remove_suffix(1);
  if (text.size() % 4 == 1) return false;
  uint32_t bits = 0;
  int have = 0;
  for (const char c : text) {
    const int six = sextet(c);
    if (six < 0) return false;
    bits = bits << 6 | static_cast<uint32_t>(six);
    have += 6;
    if (have >= 8) {
      have -= 8;
      out.push_back(static_cast<char>(bits >> have & 0xFF));
    }
  }
  return (bits & ((1U << have) - 1)) == 0;
}

using Ranks = std::vector<std::pair<std::string, TokenId>>;

Ranks parse_ranks(std::string_view text, const std::string& file) {
  Ranks out;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = text.substr(at, end - at);
    at = end + 1;
    ++number;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const size_t space = std::min(line.find(' '), line.size());
    std::string token;
    TokenId rank = -1;
    if (!from_base64(line.substr(0, space), token) ||
        !from_text(line.substr(std::min(space + 1, line.size())), rank) || rank < 0 ||
        rank >= kMostId || token.size() > kLongestToken) {
      fail(Code::kBadTokenizer, file + ":" + std::to_string(number),
           "\"<base64> <rank>\" is expected, of", kLongestToken, "bytes at most, found",
           to_text(std::string(line.substr(0, 80))));
    }
    out.emplace_back(std::move(token), rank);
  }
  return out;
}

// Every way to make a token of two others is a merge of the token's rank: so merging by pairs finds
// what tiktoken finds by looking joined bytes up.
std::vector<BpeMerge> merges_of(const Ranks& ranks) {
  TokenTable table;
  table.reserve(ranks.size());
  for (const auto& [token, rank] : ranks) table.add(token, rank);
  std::vector<BpeMerge> out;
  for (const auto& [token, rank] : ranks) {
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const std::string_view whole = token;
      const TokenId left = table.find(whole.substr(0, cut));
      const TokenId right = left < 0 ? -1 : table.find(whole.substr(cut));
      if (right >= 0) out.push_back({left, right, rank});
    }
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const BpeMerge& a, const BpeMerge& b) { return a.result < b.result; });
  return out;
}

std::string& slot(std::vector<std::string>& tokens, TokenId id) {
  if (static_cast<size_t>(id) >= tokens.size()) tokens.resize(static_cast<size_t>(id) + 1);
  return tokens[static_cast<size_t>(id)];
}

void put_token(BpeTokenizerParts& parts, TokenId id, const std::string& spelling,
               const std::string& file) {
  std::string& place = slot(parts.tokens, id);
  if (!place.empty()) {
    fail(Code::kBadTokenizer, file, "the id", id, "is given to two tokens,", to_text(place), "and",
         to_text(spelling));
  }
  place = spelling;
}

void put_ranks(const Ranks& ranks, BpeTokenizerParts& parts, const std::string& file) {
  TokenTable seen;
  for (const auto& [token, rank] : ranks) {
    if (rank >= most_ids(ranks.size())) {
      fail(Code::kBadTokenizer, file, "has the rank", rank, "where 0 to",
           most_ids(ranks.size()) - 1, "is expected for", ranks.size(), "tokens");
    }
    put_token(parts, rank, to_byte_alphabet(token), file);
    if (!seen.add(token, rank)) {
      fail(Code::kBadTokenizer, file, "the token", to_text(to_byte_alphabet(token)),
           "has two ranks,", seen.find(token), "and", rank);
    }
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (seen.find(std::string(1, static_cast<char>(byte))) < 0) {
      fail(Code::kBadTokenizer, file, "the byte", byte, "has no rank; all 256 must");
    }
  }
}

std::unique_ptr<Tokenizer> build(Ranks ranks, const std::string& text, const std::string& file,
                                 const TiktokenSettings& settings) {
  BpeTokenizerParts parts;
  parts.kind = "tiktoken";
  parts.pre_tokenizer = PreTokenizer::pattern(settings.pattern, file);
  parts.decoder = Decoder::byte_level();
  put_ranks(ranks, parts, file);
  for (const auto& [content, id] : settings.special) {
    put_token(parts, id, content, file);
    parts.added.push_back({.id = id, .content = content, .special = true, .normalized = false});
    if (content == settings.bos) parts.special.bos = id;
    if (content == settings.eos) parts.special.eos = id;
  }
  std::sort(parts.added.begin(), parts.added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  parts.bpe.whole_first = true;
  parts.bpe.merges = merges_of(ranks);
  parts.bpe.tokens = std::move(ranks);
  parts.fingerprint = hash128(std::as_bytes(std::span(text)));
  return std::make_unique<BpeTokenizer>(std::move(parts));
}

// first, first + 1, ... for the names.
using Special = std::vector<std::pair<std::string, TokenId>>;
void number(Special& out, TokenId first, const std::vector<std::string>& names) {
  for (const std::string& name : names) out.emplace_back(name, first++);
}
std::vector<std::string> numbered(const std::string& before, int first, int last,
                                  const std::string& after) {
  std::vector<std::string> out;
  for (int i = first; i <= last; ++i) out.push_back(before + std::to_string(i) + after);
  return out;
}

TiktokenSettings gpt2_settings() {
  return {std::string(kGpt2Pattern), {{"<|endoftext|>", 50256}}, "", "<|endoftext|>"};
}

TiktokenSettings cl100k_settings() {
  TiktokenSettings out{std::string(kTiktokenCl100kPattern), {}, "", "<|endoftext|>"};
  number(out.special, 100257,
         {"<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"});
  number(out.special, 100276, {"<|endofprompt|>"});
  return out;
}

TiktokenSettings o200k_settings() {
  TiktokenSettings out{std::string(kO200kPattern), {}, "<|startoftext|>", "<|endoftext|>"};
  constexpr int kFirst = 199998, kLast = 201087;
  std::vector<std::string> names = numbered("<|reserved_", kFirst, kLast, "|>");
  const auto name = [&](int id, const char* text) {
    names[static_cast<size_t>(id - kFirst)] = text;
  };
  name(199998, "<|startoftext|>");
  name(199999, "<|endoftext|>");
  name(200002, "<|return|>");
  name(200003, "<|constrain|>");
  name(200005, "<|channel|>");
  name(200006, "<|start|>");
  name(200007, "<|end|>");
  name(200008, "<|message|>");
  name(200012, "<|call|>");
  name(200018, "<|endofprompt|>");
  number(out.special, kFirst, names);
  return out;
}

TiktokenSettings llama3_settings() {
  TiktokenSettings out{std::string(kCl100kPattern), {}, "<|begin_of_text|>", "<|end_of_text|>"};
  std::vector<std::string> names = {"<|begin_of_text|>", "<|end_of_text|>"};
  const auto reserve = [&](int first, int last) {
    for (std::string& name : numbered("<|reserved_special_token_", first, last, "|>")) {
      names.push_back(std::move(name));
    }
  };
  reserve(0, 3);
  names.insert(names.end(), {"<|start_header_id|>", "<|end_header_id|>"});
  reserve(4, 4);
  names.emplace_back("<|eot_id|>");
  reserve(5, 250);
  number(out.special, 128000, names);
  return out;
}

TiktokenSettings qwen_settings() {
  TiktokenSettings out{std::string(kQwenPattern), {}, "", "<|endoftext|>"};
  number(out.special, 151643, {"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  number(out.special, 151646, numbered("<|extra_", 0, 204, "|>"));
  return out;
}

TiktokenSettings qwen35_settings() {
  TiktokenSettings out{std::string(kQwen35Pattern), {}, "", "<|endoftext|>"};
  number(out.special, 248044,
         {"<|endoftext|>",
          "<|im_start|>",
          "<|im_end|>",
          "<|object_ref_start|>",
          "<|object_ref_end|>",
          "<|box_start|>",
          "<|box_end|>",
          "<|quad_start|>",
          "<|quad_end|>",
          "<|vision_start|>",
          "<|vision_end|>",
          "<|vision_pad|>",
          "<|image_pad|>",
          "<|video_pad|>",
          "<tool_call>",
          "</tool_call>",
          "<|fim_prefix|>",
          "<|fim_middle|>",
          "<|fim_suffix|>",
          "<|fim_pad|>",
          "<|repo_name|>",
          "<|file_sep|>",
          "<tool_response>",
          "</tool_response>",
          "<think>",
          "</think>",
          "<|audio_start|>",
          "<|audio_end|>",
          "<tts_pad>",
          "<tts_text_bos>",
          "<tts_text_eod>",
          "<tts_text_bos_single>",
          "<|audio_pad|>"});
  return out;
}

struct Encoding {
  size_t ranks;
  std::string_view name;
  TiktokenSettings (*settings)();
};
constexpr std::array kEncodings = {
    Encoding{50256, "r50k", gpt2_settings},       Encoding{50280, "p50k", gpt2_settings},
    Encoding{100256, "cl100k", cl100k_settings},  Encoding{199998, "o200k", o200k_settings},
    Encoding{128000, "Llama 3", llama3_settings}, Encoding{151643, "Qwen", qwen_settings},
    Encoding{248044, "Qwen 3.5", qwen35_settings}};

}  // namespace

bool looks_like_tiktoken(std::string_view head) {
  std::string token;
  TokenId rank = -1;
  head = head.substr(0, head.find_first_of("\r\n"));
  const size_t space = head.find(' ');
  return space != std::string_view::npos && from_base64(head.substr(0, space), token) &&
         space + 1 < head.size() && from_text(head.substr(space + 1), rank);
}

std::unique_ptr<Tokenizer> parse_tiktoken(const std::string& text, const std::string& file,
                                          const TiktokenSettings& settings) {
  return build(parse_ranks(text, file), text, file, settings);
}

std::unique_ptr<Tokenizer> open_tiktoken(const std::string& path) {
  const std::string text = read_file(path, Code::kUnreadableData, kLongestTokenizerFile);
  Ranks ranks = parse_ranks(text, path);
  std::string known;
  for (const Encoding& encoding : kEncodings) {
    if (encoding.ranks == ranks.size()) {
      return build(std::move(ranks), text, path, encoding.settings());
    }
    known += (known.empty() ? "" : ", ") + std::to_string(encoding.ranks) + " (" +
             std::string(encoding.name) + ")";
  }
  fail(Code::kBadTokenizer, path, "has", ranks.size(),
       "ranks, which is no encoding whose pattern is known:", known,
       "; export it as tokenizer.json, which says its pattern");
}

}  // namespace troupe
