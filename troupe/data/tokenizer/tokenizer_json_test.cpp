#include "troupe/data/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include <cstdio>

#include "troupe/core/check.h"
#include "troupe/data/tokenizer/byte_level.h"
#include "troupe/testing/cpu_seconds.h"

namespace troupe {
namespace {

using Ids = std::vector<TokenId>;

// A document of six characters, of which "ab" and "abc" are merges.
struct Document {
  std::string version = R"("1.0")";
  std::string head = "";  // further fields
  std::string added = "[]";
  std::string normalizer = "null";
  std::string pre = "null";
  std::string post = "null";
  std::string decoder = R"({"type":"Fuse"})";
  std::string type = R"("type":"BPE",)";
  std::string more = "";  // further fields of the model
  std::string vocab = R"({"a":0,"b":1,"c":2," ":3,"ab":4,"abc":5})";
  std::string merges = R"(["a b",["ab","c"]])";

  std::string text() const {
    return "{\"version\":" + version + "," + head + "\"added_tokens\":" + added +
           ",\"normalizer\":" + normalizer + ",\"pre_tokenizer\":" + pre +
           ",\"post_processor\":" + post + ",\"decoder\":" + decoder + ",\"model\":{" + type +
           more + "\"vocab\":" + vocab + ",\"merges\":" + merges + "}}";
  }
  std::unique_ptr<Tokenizer> open() const { return parse_tokenizer(text(), "", "t.json"); }
};

void expect_refused(const std::string& json, const std::string& part, Code code) {
  try {
    parse_tokenizer(json, "", "t.json");
    ADD_FAILURE() << "accepted: " << json;
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), code) << e.what();
    EXPECT_EQ(std::string(e.what()).find("t.json"), 0U) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}
void expect_refused(const Document& d, const std::string& part) {
  expect_refused(d.text(), part, Code::kBadTokenizer);
}

std::string token(int id, const std::string& content, const std::string& flags = "") {
  std::string out = "{\"id\":" + std::to_string(id) + ",\"content\":\"" + content + "\"";
  for (const char* name : {"single_word", "lstrip", "rstrip", "normalized", "special"}) {
    out += std::string(",\"") + name +
           "\":" + (flags.find(name) == std::string::npos ? "false" : "true");
  }
  return out + "}";
}

TEST(TokenizerJson, MergesTheLowestRankFirstAndTheLeftmostOfEquals) {
  const auto t = Document{}.open();
  EXPECT_EQ(t->encode("abcab cab"), (Ids{5, 4, 3, 2, 4}));
  const Document ranks{.vocab = R"({"a":0,"b":1,"c":2,"ab":3,"bc":4})",
                       .merges = R"(["a b","b c"])"};
  EXPECT_EQ(ranks.open()->encode("abc"), (Ids{3, 2}));
  const Document run{.vocab = R"({"a":0,"aa":1})", .merges = R"(["a a"])"};
  EXPECT_EQ(run.open()->encode("aaaaa"), (Ids{1, 1, 0}));
}

TEST(TokenizerJson, F71_RefusesWhatTheReferenceRefuses) {
  expect_refused(Document{.version = R"("2.0")"}, "2.0");
  expect_refused(R"({"version":"1.0"})", "model", Code::kBadTokenizer);
  expect_refused(Document{.head = R"("extra":1,)"}, "\"extra\"");
  for (const char* what : {"Nmt", "BertNormalizer", "Precompiled"}) {
    expect_refused(Document{.normalizer = std::string("{\"type\":\"") + what + "\"}"}, what);
  }
  expect_refused(Document{.pre = R"({"type":"BertPreTokenizer"})"}, "BertPreTokenizer");
  expect_refused(Document{.post = R"({"type":"BertProcessing"})"}, "BertProcessing");
  expect_refused(Document{.decoder = R"({"type":"WordPiece"})"}, "WordPiece");
  expect_refused(Document{.type = R"("type":"Unigram",)"}, "Unigram");
  expect_refused(Document{.merges = R"(["a x"])"}, "\"x\"");
  expect_refused(Document{.merges = R"(["b a"])"}, "\"ba\"");
  expect_refused(Document{.merges = R"(["a b c"])"}, "3 parts");
  expect_refused(Document{.merges = R"([["a","b","c"]])"}, "3 parts");
}

TEST(TokenizerJson, F71_RefusesWhatTheReferenceTakesAndWouldMisread) {
  expect_refused(Document{.vocab = R"({"a":0,"b":0})", .merges = "[]"}, "the id 0 to two tokens");
  expect_refused(Document{.vocab = R"({"a":0,"a":1})", .merges = "[]"}, "twice");
  // After six entries new ones get 6, 7, ... in list order, whatever the file says.
  const Document good{.added = "[" + token(6, "<x>") + "," + token(7, "<y>") + "," +
                               token(4, "ab") + "]"};
  EXPECT_EQ(good.open()->vocab_size(), 8);
  expect_refused(Document{.added = "[" + token(300, "<y>") + "]"}, "assigns 6");
  expect_refused(Document{.added = "[" + token(7, "<x>") + "," + token(6, "<y>") + "]"},
                 "assigns 6");
  expect_refused(Document{.added = "[" + token(9, "ab") + "]"}, "assigns 4");
}

TEST(TokenizerJson, F71_RefusesWhatItDoesNotObey) {
  expect_refused(Document{.more = R"("dropout":0.1,)"}, "dropout");
  expect_refused(Document{.more = R"("end_of_word_suffix":"</w>",)"}, "</w>");
  expect_refused(Document{.normalizer = R"({"type":"NFC","x":1})"}, "\"x\"");
  expect_refused(
      Document{
          .pre =
              R"({"type":"Sequence","pretokenizers":[{"type":"ByteLevel"},{"type":"Whitespace"}]})"},
      "pretokenizers[1]");
  expect_refused(
      Document{
          .pre =
              R"({"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated","invert":false})"},
      "pre_tokenizer.pattern.Regex");
  for (const char* mark : {"", "ab"}) {  // an empty one was matched for ever
    const std::string metaspace = std::string(R"({"type":"Metaspace","replacement":")") + mark +
                                  R"(","prepend_scheme":"first","split":true})";
    expect_refused(Document{.pre = metaspace}, "pre_tokenizer.replacement");
    expect_refused(Document{.pre = metaspace}, "one character is expected");
  }
  expect_refused(Document{.vocab = R"({"a":99999999})", .merges = "[]"}, "99999999");
  expect_refused(Document{.vocab = R"({"a":-1})", .merges = "[]"}, "-1");
  expect_refused(Document{.vocab = R"({"a":1.5})", .merges = "[]"}, "1.5");
  expect_refused(Document{.vocab = R"({"a":{}})", .merges = "[]"}, "model.vocab");
  expect_refused(Document{.merges = R"([1])"}, "model.merges");
  expect_refused(Document{.merges = R"([[["a"],"b"]])"}, "model.merges");
  expect_refused(Document{.added = R"([{"id":6}])"}, "content");
  expect_refused(Document{.added = "[" + token(6, std::string(2000, 'x')) + "]"}, "2000");
}

TEST(TokenizerJson, F140_RefusesJsonThatIsTooDeepOrMalformed) {
  expect_refused("{\"model\":" + std::string(100000, '['), "deeper", Code::kBadJson);
  expect_refused("{\"a\":1,", "parse error", Code::kBadJson);
  expect_refused("[]", "is not an object", Code::kBadTokenizer);
  expect_refused("{\"version\":\"\xFF\"}", "parse error", Code::kBadJson);
  expect_refused(R"({"version":"1.0","version":"1.0"})", "twice", Code::kBadTokenizer);
  expect_refused(R"({"model":{"vocab":{"a":)" + std::string(1000000, '9') + "}}}", "overflow",
                 Code::kBadJson);
}

TEST(TokenizerJson, AcceptsWhatTheReferenceAccepts) {
  const std::string model =
      R"("model":{"vocab":{"a":0,"b":1,"ab":2},"merges":["#version: 0.2","a b"]})";
  const auto t = parse_tokenizer("{" + model + "}", "", "t.json");
  EXPECT_EQ(t->encode("abba"), (Ids{2, 1, 0}));
  EXPECT_EQ(t->decode(Ids{2, 1, 0}), "ab b a");  // no decoder: spaces between
  const auto warned = Document{.head = R"("truncation":{"max_length":4},)",
                               .added = "[" + token(6, "") + "]",
                               .more = R"("novelty":1,)"}
                          .open();
  EXPECT_EQ(warned->warnings().size(), 3U);
  EXPECT_EQ(warned->encode("abcabcabcabcabc").size(), 5U);
}

TEST(TokenizerJson, FindsAddedTokensLeftmostLongest) {
  const auto t = Document{.added = "[" + token(6, "<a>") + "," + token(7, "<a><b") + "]"}.open();
  EXPECT_EQ(t->encode("<a><b<a>b"), (Ids{7, 6, 1}));
  const auto words = Document{.added = "[" + token(6, "ca", "single_word") + "]"}.open();
  EXPECT_EQ(words->encode("ca b"), (Ids{6, 3, 1}));
  EXPECT_EQ(words->encode("cab"), (Ids{2, 4}));
  const auto strip = Document{.added = "[" + token(6, "X", "lstrip rstrip special") + "]"}.open();
  EXPECT_EQ(strip->encode("a  X  X b"), (Ids{0, 6, 6, 1}));
  EXPECT_EQ(strip->decode(Ids{0, 6, 1}, {.skip_special = true}), "ab");
  EXPECT_EQ(strip->encode("aXb", {.special_as_text = true}), (Ids{4}));  // X is dropped
}

TEST(TokenizerJson, AddedTokensThatBeginAlikeAreFoundAsByLookingAtEach) {
  const std::vector<std::string> all = {"x",    "xy",  "xyz", "xyzzy", "xz", "yx",
                                        "yxyx", "zzz", "zz",  "zxy",   "y"};
  std::string added = "[";
  for (size_t i = 0; i < all.size(); ++i) {
    added.append(i == 0 ? "" : ",").append(token(6 + static_cast<int>(i), all[i]));
  }
  const auto t = Document{.added = added + "]"}.open();
  uint64_t state = 1;
  for (int round = 0; round < 500; ++round) {
    std::string text;
    for (int i = 0; i < 12; ++i) {
      state = state * 6364136223846793005U + 1442695040888963407U;
      text += "xyza"[state >> 62];
    }
    Ids want;
    for (size_t at = 0; at < text.size();) {
      size_t best = all.size(), size = 1;
      for (size_t i = 0; i < all.size(); ++i) {
        if (text.compare(at, all[i].size(), all[i]) != 0) continue;
        if (best < all.size() && all[i].size() <= all[best].size()) continue;
        best = i;
        size = all[i].size();
      }
      if (best < all.size()) want.push_back(6 + static_cast<TokenId>(best));
      if (best == all.size() && text[at] == 'a') want.push_back(0);
      at += size;
    }
    ASSERT_EQ(t->encode(text), want) << text;
  }
}

TEST(TokenizerJson, NormalizedAddedTokensAreSoughtInNormalizedText) {
  const Document d{.added = "[" + token(6, "AB", "normalized") + "," + token(7, "B") + "]",
                   .normalizer = R"({"type":"Lowercase"})"};
  EXPECT_EQ(d.open()->encode("aB"), (Ids{0, 7}));  // raw ones first
  EXPECT_EQ(d.open()->encode("cAb"), (Ids{2, 6}));
}

TEST(TokenizerJson, UnknownCharactersFallBackFuseOrGo) {
  const std::string vocab = R"({"a":0,"?":1,"<0xC3>":2,"<0xA9>":3})";
  Document d{.vocab = vocab, .merges = "[]"};
  EXPECT_EQ(d.open()->encode("a\xC3\xA9zz"), (Ids{0}));
  d.more = R"("unk_token":"?",)";
  EXPECT_EQ(d.open()->encode("azza"), (Ids{0, 1, 1, 0}));
  d.more = R"("unk_token":"?","fuse_unk":true,)";
  EXPECT_EQ(d.open()->encode("azza"), (Ids{0, 1, 0}));
  d.more = R"("unk_token":"?","byte_fallback":true,)";
  EXPECT_EQ(d.open()->encode("a\xC3\xA9z"), (Ids{0, 2, 3, 1}));
}

TEST(TokenizerJson, AWholePieceThatIsATokenSkipsTheMerges) {
  Document d{.pre = R"({"type":"WhitespaceSplit"})",
             .vocab = R"({"a":0,"b":1,"c":2,"bc":3,"abc":4})",
             .merges = R"(["b c"])"};
  EXPECT_EQ(d.open()->encode("abc"), (Ids{0, 3}));
  d.more = R"("ignore_merges":true,)";
  EXPECT_EQ(d.open()->encode("abc aabc"), (Ids{4, 0, 0, 3}));
}

TEST(ByteLevel, TheAlphabetIsGpt2s) {
  EXPECT_EQ(to_byte_alphabet(" \n\x7F\xAD"),
            "\xC4\xA0\xC4\x8A\xC4\xA1\xC5\x83");  // 120 10A 121 143
  std::string all, back;
  for (int byte = 0; byte < 256; ++byte) all += static_cast<char>(byte);
  EXPECT_TRUE(from_byte_alphabet(to_byte_alphabet(all), back));
  EXPECT_EQ(back, all);
  EXPECT_EQ(to_byte_alphabet("!~\xA1\xFF"), "!~\xC2\xA1\xC3\xBF");
  EXPECT_FALSE(from_byte_alphabet("\xE2\x96\x81", back));
}

// Mixtral and Llama 2: U+2581 for spaces, bytes for what is not known.
Document llama() {
  std::string vocab = R"({"<unk>":0,"<s>":1,)";
  char name[8];
  for (int byte = 0; byte < 256; ++byte) {
    std::snprintf(name, sizeof(name), "<0x%02X>", byte);
    vocab += std::string("\"") + name + "\":" + std::to_string(byte + 2) + ",";
  }
  return {
      .added = "[" + token(0, "<unk>", "special") + "," + token(1, "<s>", "special") + "]",
      .normalizer =
          R"({"type":"Sequence","normalizers":[{"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]})",
      .post =
          R"({"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{"<s>":{"id":"<s>","ids":[1],"tokens":["<s>"]}}})",
      .decoder =
          R"({"type":"Sequence","decoders":[{"type":"Replace","pattern":{"String":"\u2581"},"content":" "},{"type":"ByteFallback"},{"type":"Fuse"},{"type":"Strip","content":" ","start":1,"stop":0}]})",
      .more = R"("unk_token":"<unk>","fuse_unk":true,"byte_fallback":true,)",
      .vocab = vocab + R"("\u2581":258,"a":259,"b":260,"\u2581a":261,"\u2581\u2581":262})",
      .merges = R"(["\u2581 a","\u2581 \u2581"])"};
}

TEST(TokenizerJson, TheLlamaPipelineBothWays) {
  const auto t = llama().open();
  EXPECT_EQ(t->encode("a  a"), (Ids{1, 261, 258, 261}));
  EXPECT_EQ(t->encode("a<s>b", {.add_special = false}), (Ids{261, 1, 258, 260}));
  EXPECT_EQ(t->encode("\xC3\xA9", {.add_special = false}), (Ids{258, 2 + 0xC3, 2 + 0xA9}));
  EXPECT_EQ(t->decode(Ids{1, 261, 258, 261}, {.skip_special = true}), "a  a");
  EXPECT_EQ(t->decode(Ids{258, 2 + 0xC3, 2 + 0xA9, 259}),
            "\xC3\xA9"
            "a");
  EXPECT_EQ(t->decode(Ids{2 + 0xC3, 2 + 0xA9, 2 + 0xFF}), "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(t->special().bos, 1);
}

TEST(TokenizerJson, F73_AMegabyteWithoutASpaceTakesLinearTime) {
  const std::string pre = R"({"type":"ByteLevel","add_prefix_space":false})";
  std::string merges = "[\"a a\"", text = "a", vocab = "{\"a\":0,\"aa\":1";
  for (int i = 0; i < 10; ++i) {
    text += text;
    merges += ",\"" + text + " " + text + "\"";
    vocab += ",\"" + text + text + "\":" + std::to_string(i + 2);
  }
  const auto t = Document{.pre = pre, .vocab = vocab + "}", .merges = merges + "]"}.open();
  const double begin = cpu_seconds();
  EXPECT_EQ(t->encode(std::string(size_t{1} << 20, 'a')).size(), size_t{1} << 9);
  EXPECT_LT(cpu_seconds() - begin, 10);  // a quadratic search takes minutes
}

// A list of so many of the same text.
std::string repeated(int n, const std::string& item) {
  std::string out = "[";
  for (int i = 0; i < n; ++i) out.append(i == 0 ? "" : ",").append(item);
  return out + "]";
}

TEST(TokenizerJson, F155_AnIdFarBehindTheTokensIsRefused) {
  for (const char* id : {"16777215", "65600", "9223372036854775807"}) {  // 500 MB of a kilobyte
    expect_refused(Document{.vocab = std::string(R"({"a":)") + id + "}", .merges = "[]"},
                   "is expected for 1 tokens");
  }
  EXPECT_EQ((Document{.vocab = R"({"a":0,"b":300})", .merges = "[]"}.open()->vocab_size()), 301);
}

TEST(TokenizerJson, F156_StepsThatMakeMuchOfATextAreRefused) {
  const std::string many(1000, 'a');
  const auto chain = [](const char* name, const std::string& step) {
    return std::string(R"({"type":"Sequence",")") + name + "\":" + repeated(5, step) + "}";
  };
  const auto replace = [&](const std::string& pattern) {
    return R"({"type":"Replace","pattern":{)" + pattern + R"(},"content":")" + many + "\"}";
  };
  const double begin = cpu_seconds();
  for (const std::string& step :
       {replace(R"("String":"a")"), replace(R"("Regex":"a")"),
        R"({"type":"Prepend","prepend":")" + std::string(70000, 'a') + "\"}"}) {
    const auto t = Document{.normalizer = chain("normalizers", step)}.open();
    try {
      t->encode("aaaa");
      ADD_FAILURE() << step.substr(0, 60);
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("t.json: normalizer"), std::string::npos) << e.what();
    }
  }
  const auto marks = Document{
      .pre =
          R"({"type":"Sequence","pretokenizers":[{"type":"Split","pattern":{"Regex":"a"},"behavior":"Isolated","invert":false},)" +
          repeated(
              30,
              R"({"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always","split":false},)"
              R"({"type":"Metaspace","replacement":"\u2582","prepend_scheme":"always","split":false})")
              .substr(1) +
          "}"};
  EXPECT_THROW(marks.open()->encode(std::string(size_t{1} << 16, 'a')), Error);
  const auto decoder = Document{.decoder = chain("decoders", replace(R"("String":"a")"))}.open();
  EXPECT_THROW(decoder->decode(Ids{0, 4}), Error);
  EXPECT_EQ(decoder->decode(Ids{1, 2}), "bc");
  EXPECT_LT(cpu_seconds() - begin, 20);
  for (const char* name : {"normalizers", "decoders"}) {
    Document d;
    (name[0] == 'n' ? d.normalizer : d.decoder) =
        std::string(R"({"type":"Sequence",")") + name +
        "\":" + repeated(65, R"({"type":"Replace","pattern":{"String":"x"},"content":"y"})") + "}";
    expect_refused(d, std::string("one more than 64 ") + name);
  }
  expect_refused(Document{.pre = R"({"type":"Sequence","pretokenizers":)" +
                                 repeated(65, R"({"type":"Whitespace"})") + "}"},
                 "one more than 64 pre-tokenizers");
}

TEST(TokenizerJson, F157_ThousandsOfLongAddedTokensAreFoundInTime) {
  // They begin alike, and branch at many places: the bomb of a search that goes byte by byte.
  std::string added = "[";
  const std::string head(900, 'x');
  for (int i = 0; i < 20000; ++i) {
    added.append(i == 0 ? "" : ",")
        .append(token(6 + i, head + std::to_string(i) + std::string(100, 'y')));
  }
  const std::string json = Document{.added = added + "]"}.text();
  const double begin = cpu_seconds();
  const auto t = parse_tokenizer(json, "", "t.json");
  EXPECT_EQ(t->encode(head + "19999" + std::string(100, 'y') + "b"), (Ids{6 + 19999, 1}));
  EXPECT_EQ(t->encode(std::string(size_t{1} << 18, 'x')).size(), 0U);  // no token, and no unk
  EXPECT_LT(cpu_seconds() - begin, 10);
}

TEST(TokenizerJson, F158_ATokenOfAMegabyteIsRefused) {
  expect_refused(
      Document{.vocab = R"({"a":0,")" + std::string(1 << 20, 'b') + "\":1}", .merges = "[]"},
      "a token of 1048576 bytes");
}

TEST(TokenizerJson, F159_WhatIsGivenManyTimesTakesTimeInProportion) {
  const double begin = cpu_seconds();
  const std::string ids = repeated(20000, "0"),
                    single = repeated(20000, R"({"SpecialToken":{"id":"<s>"}})");
  expect_refused(Document{.post = R"({"type":"TemplateProcessing","single":)" + single +
                                  R"(,"special_tokens":{"<s>":{"ids":)" + ids + "}}}"},
                 "more than 1024 ids");
  const auto again = Document{.added = repeated(40000, token(6, "<x>"))}.open();
  EXPECT_EQ(again->vocab_size(), 7);
  EXPECT_EQ(again->added_tokens().size(), 1U);
  expect_refused(Document{.head = "\"" + std::string(size_t{4} << 20, 'k') +
                                  "\":" + repeated(40000, "{}") + ","},
                 "a field that is not known");
  EXPECT_LT(cpu_seconds() - begin, 10);
}

TEST(TokenizerJson, ShortAndLongWordsMergeAlike) {
  // A word of 63 bytes takes one path, of 200 the other; the words end at the same places.
  const auto t = Document{.pre = R"({"type":"WhitespaceSplit"})"}.open();
  std::string word, pieces = "abcababccab";
  while (word.size() < 200) word += pieces[(word.size() * 7) % pieces.size()];
  Ids want;
  for (size_t at = 0; at < word.size();) {  // abc and ab are whole wherever they stand
    const bool three = word.compare(at, 3, "abc") == 0, two = word.compare(at, 2, "ab") == 0;
    want.push_back(three ? 5 : two ? 4 : word[at] - 'a');
    at += three ? 3 : two ? 2 : 1;
  }
  EXPECT_EQ(t->encode(word), want);
}

}  // namespace
}  // namespace troupe
