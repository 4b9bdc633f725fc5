#include "troupe/core/config/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <sstream>

#include "troupe/core/config/config_describe.h"
#include "troupe/core/config/counts.h"
#include "troupe/core/text/units.h"

namespace troupe {
namespace {

enum class Norm { kRms, kLayer };
constexpr auto names_of(Norm) {
  return std::array{Named{"rms", Norm::kRms}, Named{"layer", Norm::kLayer}};
}

struct TopkSoftmax {
  static constexpr std::string_view kKind = "topk_softmax";
  int top_k = 2;
  static void visit(auto& c, auto&& f) { f("top_k", c.top_k); }
};

struct SigmoidBias {
  static constexpr std::string_view kKind = "sigmoid_bias";
  int top_k = 8;
  float bias_rate = 1e-3f;
  static void visit(auto& c, auto&& f) {
    f("top_k", c.top_k);
    f("bias_rate", c.bias_rate);
  }
};

struct Source {
  std::string path;
  double weight = 1;
  static void visit(auto& c, auto&& f) {
    f("path", c.path);
    f("weight", c.weight);
  }
};

struct Clip {
  double norm_limit = 1;
  static void visit(auto& c, auto&& f) { f("norm_limit", c.norm_limit); }
};

struct Nothing {
  static void visit(auto&, auto&&) {}
};

struct Recipe {
  int64_t num_experts = 64;
  bool shared = false;
  Norm norm = Norm::kRms;
  OneOf<TopkSoftmax, SigmoidBias> router;
  std::vector<double> betas = {0.9, 0.95};
  std::vector<Source> mix;
  std::optional<int> every;
  std::optional<Clip> clip;
  Duration save = minutes(30);
  static void visit(auto& c, auto&& f) {
    f("num_experts", c.num_experts);
    f("shared", c.shared);
    f("norm", c.norm);
    f("router", c.router);
    f("betas", c.betas);
    f("mix", c.mix);
    f("every", c.every);
    f("clip", c.clip);
    f("save", c.save);
  }
};

Recipe read(const std::string& text) {
  Recipe recipe;
  read_config(parse_yaml(text, "r.yaml"), recipe);
  return recipe;
}

std::string error_of(const std::string& text) {
  try {
    read(text);
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

void set(Recipe& recipe, const std::string& assignment) {
  read_config(override_yaml(assignment), recipe);
}

std::string printed(const Recipe& recipe) {
  std::ostringstream os;
  print_config(os, recipe);
  return os.str();
}

TEST(Config, ReadsWhatIsWrittenAndKeepsTheRest) {
  const Recipe r = read(
      "shared: true\n"
      "norm: layer\n"
      "router: {kind: sigmoid_bias, bias_rate: 0.5}\n"
      "mix:\n"
      "  - path: a b\n"
      "    weight: 2\n");
  EXPECT_EQ(r.num_experts, 64);
  EXPECT_TRUE(r.shared);
  EXPECT_EQ(r.norm, Norm::kLayer);
  EXPECT_EQ(std::get<SigmoidBias>(r.router).bias_rate, 0.5f);
  EXPECT_EQ(std::get<SigmoidBias>(r.router).top_k, 8);
  ASSERT_EQ(r.mix.size(), 1u);
  EXPECT_EQ(r.mix[0].path, "a b");
}

struct Centered {
  static constexpr std::string_view kKind = "centered";
  bool center = false;
  static void visit(auto& c, auto&& f) {
    f("center", c.center, "Subtracts the mean.", OldName{"centre"});
  }
};
struct Renamed {
  OneOf<TopkSoftmax, Centered> router = Centered{};
  static void visit(auto& c, auto&& f) { f("router", c.router); }
};

TEST(Config, AnOldNameIsReadAndTheNewOneIsPrinted) {
  Renamed c;
  const Sources sources = read_config(override_yaml("router.centre=true"), c);
  EXPECT_TRUE(std::get<Centered>(c.router).center);
  EXPECT_TRUE(sources.contains("router.center"));
  std::ostringstream os;
  print_config(os, c);
  EXPECT_EQ(os.str(), "router:\n  kind: centered\n  center: true\n");
  EXPECT_EQ(old_names(c), (detail::Flat{{"router.centre", "router.center"}}));
  EXPECT_THROW(read_config(parse_yaml("router: {\"\": true}", "r.yaml"), c), Error);
  for (const char* twice : {"{centre: true, center: false}", "{center: false, centre: true}"}) {
    try {
      read_config(override_yaml(std::string("router=") + twice), c);
      ADD_FAILURE() << twice;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), Code::kWrittenTwice) << e.what();
    }
  }
}

struct Way {
  static constexpr std::string_view kKind = "way";
  static void visit(auto&, auto&&) {}
};
struct OtherWay {
  static constexpr std::string_view kKind = "other_way";
  static void visit(auto&, auto&&) {}
};
struct Ways {
  OneOf<Way, OtherWay> ways;
  static void visit(auto& c, auto&& f) { f("ways", c.ways); }
};

TEST(Config, AKindMayStandForItsSection) {
  EXPECT_EQ(read("router: sigmoid_bias\n").router.kind(), "sigmoid_bias");
  EXPECT_EQ(error_of("router: sigmoid_bais\n"),
            "r.yaml:1: E2005 router must be a section, or one of topk_softmax, sigmoid_bias, not "
            "\"sigmoid_bais\"; did you mean \"sigmoid_bias\"?");
  Ways c;
  const Sources sources = read_config(override_yaml("ways=other_way"), c);
  EXPECT_EQ(c.ways.kind(), "other_way");
  std::ostringstream os;
  print_config(os, c, sources);
  EXPECT_EQ(os.str(), "ways: other_way  # --set ways=other_way\n");
}

TEST(Config, NamesThePlaceAndTheNearestField) {
  EXPECT_EQ(error_of("\nrouter:\n  topk: 8\n"),
            "r.yaml:3: E2003 no field \"topk\" in router; did you mean \"top_k\"?");
  EXPECT_EQ(
      error_of("num-experts: 8\n"),
      "r.yaml:1: E2003 no field \"num-experts\" in the recipe; did you mean \"num_experts\"?");
  EXPECT_EQ(error_of("router: {kind: sigmoid_bais}\n"),
            "r.yaml:1: E2004 no kind \"sigmoid_bais\" in router; did you mean \"sigmoid_bias\"?");
  EXPECT_EQ(error_of("router: {kind: hash}\n"),
            "r.yaml:1: E2004 no kind \"hash\" in router (there is: topk_softmax, sigmoid_bias)");
}

TEST(Config, F77_TellsWhereAMisplacedFieldBelongs) {
  EXPECT_EQ(error_of("top_k: 8\n"),
            "r.yaml:1: E2003 no field \"top_k\" in the recipe; it belongs under \"router\"");
  EXPECT_EQ(error_of("router: {num_experts: 8}\n"),
            "r.yaml:1: E2003 no field \"num_experts\" in router; it belongs under the top level");
  EXPECT_EQ(error_of("norm-limit: 8\n"),
            "r.yaml:1: E2003 no field \"norm-limit\" in the recipe; it belongs under \"clip\"");
  EXPECT_EQ(
      error_of("norm_limt: 8\n"),
      "r.yaml:1: E2003 no field \"norm_limt\" in the recipe; did you mean \"clip.norm_limit\"?");
}

TEST(Config, ReportsAllFaultsAtOnce) {
  EXPECT_EQ(
      error_of("num_experts: 8x\nshared: yes\nbetas: 0.9\nrouter: 3\nmix: [{weight: a}]\n"
               "norm: layr\nsave: 5m\nevery: [1]\n"),
      "r.yaml:1: E2005 num_experts must be an integer, not \"8x\"\n"
      "r.yaml:2: E2005 shared must be true or false, not \"yes\"; did you mean \"true\"?\n"
      "r.yaml:3: E2005 betas must be a list, not \"0.9\"\n"
      "r.yaml:4: E2005 router must be a section, or one of topk_softmax, sigmoid_bias, not \"3\"\n"
      "r.yaml:5: E2005 mix[0].weight must be a number, not \"a\"\n"
      "r.yaml:6: E2005 norm must be one of rms, layer, not \"layr\"; did you mean \"layer\"?\n"
      "r.yaml:7: E2005 save must be a duration such as 30min (ns, us, ms, s, min, h, d), not "
      "\"5m\"; did you mean \"5min\"?\n"
      "r.yaml:8: E2005 every must be an integer, not a list");
}

TEST(Config, AFaultIsOneOfUsageWithTheFirstCode) {
  try {
    read("norms: rms\nshared: 1\n");
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), Code::kNoSuchField);
    EXPECT_EQ(e.exit_class(), ExitClass::kUsage);
  }
}

TEST(Config, F78_RefusesNumbersThatAreNot) {
  for (const char* text : {"", "~", "{}", "[]", "9223372036854775808", "1e3", "4M", "017", "-01",
                           "0x10", "1_000", "+1", "\" 1\"", "yes", "1.0"}) {
    EXPECT_NE(error_of("num_experts: " + std::string(text)), "") << text;
  }
  for (const char* text :
       {"", "~", "1e400", "-1e400", "nan", ".nan", "inf", ".inf", "0x1p3", "1e", "--1"}) {
    EXPECT_NE(error_of("clip: {norm_limit: " + std::string(text) + "}"), "") << text;
  }
  EXPECT_TRUE(error_of("num_experts: 1e3").ends_with("not \"1e3\"; did you mean \"1000\"?"));
  EXPECT_EQ(error_of("num_experts: 1.5").find("did you mean"), std::string::npos);
  EXPECT_EQ(read("num_experts: -9223372036854775808").num_experts, INT64_MIN);
  EXPECT_EQ(read("num_experts: 0").num_experts, 0);
  EXPECT_EQ(read("clip: {norm_limit: 1e-4}").clip->norm_limit, 1e-4);
}

TEST(Config, AnIntegerIsToldTheBoundThatItPassed) {
  EXPECT_EQ(error_of("every: 2147483648\n"),
            "r.yaml:1: E2005 every must be an integer of at most 2147483647, not \"2147483648\"");
  EXPECT_EQ(error_of("every: -2147483649\n"),
            "r.yaml:1: E2005 every must be an integer of at least -2147483648, not "
            "\"-2147483649\"");
  EXPECT_TRUE(error_of("num_experts: 2k").ends_with("not \"2k\"; did you mean \"2000\"?"));
  EXPECT_TRUE(error_of("num_experts: 1.5M").ends_with("not \"1.5M\"; did you mean \"1500000\"?"));
  EXPECT_EQ(expectation("x", uint64_t{}).wanted, "an integer of at least 0");
}

TEST(Config, TheFirstPartOfAKindIsAnsweredWithIt) {
  EXPECT_TRUE(error_of("router: {kind: topk}").ends_with("did you mean \"topk_softmax\"?"));
  EXPECT_TRUE(error_of("router: top-k").ends_with("did you mean \"topk_softmax\"?"));
}

struct ShortNames {
  struct Norm {
    double eps = 1;
    static void visit(auto& c, auto&& f) { f("eps", c.eps); }
  };
  struct Eval {
    struct Tasks {
      int shots = 0;
      static void visit(auto& c, auto&& f) { f("shots", c.shots); }
    };
    int every = 0;
    Tasks tasks;
    static void visit(auto& c, auto&& f) {
      f("every", c.every);
      f("tasks", c.tasks);
    }
  };
  Norm norm;
  Eval eval;
  static void visit(auto& c, auto&& f) {
    f("norm", c.norm);
    f("eval", c.eval);
  }
};

TEST(Config, AFieldIsAnsweredFromItsOwnSectionFirst) {
  const auto answer = [](const std::string& assignment) -> std::string {
    try {
      ShortNames c;
      read_config(override_yaml(assignment), c);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_TRUE(
      answer("eval.sets=1").ends_with("no field \"sets\" in eval (there is: every, tasks)"));
  EXPECT_TRUE(answer("eval.shts=1").ends_with("did you mean \"eval.tasks.shots\"?"));
  EXPECT_TRUE(answer("eval.epss=1").ends_with("did you mean \"norm.eps\"?"));
}

TEST(Config, NullIsTheAbsenceOfAnOptionalField) {
  Recipe r = read("every: 5\nclip: {}\n");
  EXPECT_EQ(r.every, 5);
  ASSERT_TRUE(r.clip.has_value());
  EXPECT_EQ(r.clip->norm_limit, 1);
  set(r, "every=null");
  set(r, "clip=~");
  EXPECT_FALSE(r.every.has_value());
  EXPECT_FALSE(r.clip.has_value());
  set(r, "clip.norm_limit=3");  // makes the section
  EXPECT_EQ(r.clip->norm_limit, 3);
  EXPECT_EQ(error_of("every: 5x\n"), "r.yaml:1: E2005 every must be an integer, not \"5x\"");
}

TEST(Config, OverridesOneField) {
  Recipe r;
  set(r, "router.kind=sigmoid_bias");
  set(r, "router.bias_rate=0.002");
  set(r, "router.kind=sigmoid_bias");
  set(r, "betas=[0.8, 0.99]");
  EXPECT_EQ(std::get<SigmoidBias>(r.router).bias_rate, 0.002f);
  EXPECT_EQ(r.betas, (std::vector<double>{0.8, 0.99}));
}

TEST(Config, RefusesAnOverrideItCannotPlace) {
  Recipe r;
  EXPECT_THROW(set(r, "router.topk=8"), Error);
  EXPECT_THROW(set(r, "router=8"), Error);
  EXPECT_THROW(set(r, "num_experts"), Error);
  EXPECT_THROW(set(r, "num_experts="), Error);
  EXPECT_THROW(set(r, "num_experts.x=1"), Error);
  EXPECT_THROW(set(r, "=1"), Error);
}

TEST(Config, AFaultOfAnOverrideNamesTheOverride) {
  Recipe r;
  for (const auto& [assignment, want] : {
           std::pair("router.topk=8",
                     "--set router.topk=8: E2003 no field \"topk\" in router; did you "
                     "mean \"top_k\"?"),
           std::pair("betas=[x]", "--set betas=[x]: E2005 betas[0] must be a number, not \"x\""),
           std::pair("shared", "--set shared: E2006 not of the form path=value"),
           std::pair("every=", ""),
       }) {
    std::string what;
    try {
      set(r, assignment);
    } catch (const Error& e) {
      what = e.what();
    }
    EXPECT_EQ(what, want);
  }
}

TEST(Config, PrintsARecipeThatReadsBackTheSame) {
  Recipe r;
  EXPECT_EQ(
      printed(r),
      "num_experts: 64\nshared: false\nnorm: rms\nrouter:\n  kind: topk_softmax\n"
      "  top_k: 2\nbetas:\n  - 0.9\n  - 0.95\nmix: []\nevery: null\nclip: null\nsave: 30min\n");
  r.router = SigmoidBias{.top_k = 4, .bias_rate = 0.1f};
  r.betas = {1.0 / 3};
  r.mix = {{.path = "no: \"x\"\n\\", .weight = 1e-300}, {.path = "~", .weight = 2}};
  const Recipe back = read(printed(r));
  EXPECT_EQ(printed(back), printed(r));
  EXPECT_EQ(back.betas, r.betas);
  EXPECT_EQ(back.mix[0].path, r.mix[0].path);
  EXPECT_EQ(back.mix[1].path, "~");
}

TEST(Config, F81_ShowsWhereEachValueCameFrom) {
  Recipe r;
  Sources sources =
      read_config(parse_yaml("shared: true\nrouter: {kind: sigmoid_bias}", "r.yaml"), r);
  const Sources later = read_config(override_yaml("num_experts=8"), r);
  for (const auto& [path, where] : later) sources.insert_or_assign(path, where);
  std::ostringstream os;
  print_config(os, r, sources);
  const std::string text = os.str(), head =
                                         "num_experts: 8  # --set num_experts=8\n"
                                         "shared: true  # r.yaml:1\n"
                                         "norm: rms\n"
                                         "router:\n"
                                         "  kind: sigmoid_bias  # r.yaml:2\n"
                                         "  top_k: 8\n";
  EXPECT_EQ(text.substr(0, head.size()), head);
  EXPECT_TRUE(same(read(text), r));
}

TEST(Config, ASourceOfSeveralLinesStaysAComment) {
  Recipe r;
  const Sources sources = read_config(override_yaml("betas=\n- 0.5\n- 1"), r);
  std::ostringstream os;
  print_config(os, r, sources);
  EXPECT_TRUE(same(read(os.str()), r)) << os.str();
}

TEST(Config, FlattensToPathsAndTexts) {
  Recipe r;
  r.mix = {{.path = "a", .weight = 2}};
  const std::vector<std::pair<std::string, std::string>> want = {
      {"num_experts", "64"},  {"shared", "false"},
      {"norm", "rms"},        {"router.kind", "topk_softmax"},
      {"router.top_k", "2"},  {"betas[0]", "0.9"},
      {"betas[1]", "0.95"},   {"mix[0].path", "\"a\""},
      {"mix[0].weight", "2"}, {"every", "null"},
      {"clip", "null"},       {"save", "30min"}};
  EXPECT_EQ(flatten(r), want);
}

TEST(Config, SameMeansTheSameBits) {
  Recipe a, b;
  EXPECT_TRUE(same(a, b));
  b.betas[1] = std::nextafter(b.betas[1], 1);
  EXPECT_FALSE(same(a, b));
  b = a;
  b.clip.emplace();
  EXPECT_FALSE(same(a, b));
  b = a;
  b.router = SigmoidBias{.top_k = 2};
  EXPECT_FALSE(same(a, b));
}

struct Bounded {
  int64_t ranks = 1, rows = 1, free = 1;
  std::vector<int64_t> sizes = {};
  std::optional<double> gain = {};
  Count tokens = {};
  static void visit(auto& c, auto&& f) {
    f("ranks", c.ranks, "Ranks.", AtMost{8}, kNotNegative);
    f("rows", c.rows, "Rows.", kNotNegative);
    f("free", c.free, "Neither.");
    f("sizes", c.sizes, "Of each.", AtMost{4});
    f("gain", c.gain, "Gain.", kNotNegative);
    f("tokens", c.tokens, "Tokens.", AtMost{100});
  }
};
struct TwoBounded {
  Bounded one, other;
  static void visit(auto& c, auto&& f) {
    f("one", c.one, "One.");
    f("other", c.other, "Other.");
  }
};

TEST(Config, AFieldStatesItsBoundsBehindItsHelp) {
  const auto beyond = [](const TwoBounded& c) {
    std::string out;
    for (const CountFault& fault : counts_out_of_bounds(c)) {
      out += fault.path + ' ' + fault.what + '\n';
    }
    return out;
  };
  TwoBounded c;
  EXPECT_EQ(beyond(c), "");
  EXPECT_TRUE(negative_fields(c).empty());
  c.one = {.ranks = 8, .rows = kMostCount, .free = -5, .sizes = {4, -4}, .tokens = {100}};
  EXPECT_EQ(beyond(c), "");
  EXPECT_TRUE(negative_fields(c).empty());
  c.other = {.ranks = -9,
             .rows = -1,
             .free = kMostCount + 1,
             .sizes = {1, 5},
             .gain = -0.5,
             .tokens = {101}};
  EXPECT_EQ(beyond(c),
            "other.ranks is -9; at most 8 is taken\n"
            "other.free is 1099511627777; at most 1099511627776 is taken\n"
            "other.sizes[1] is 5; at most 4 is taken\n"
            "other.tokens is 101; at most 100 is taken\n");
  EXPECT_EQ(negative_fields(c),
            (std::vector<std::string>{"other.ranks", "other.rows", "other.gain"}));
  EXPECT_EQ(describe(Bounded())[0].help, "Ranks.");  // and no visitor minds them
}

struct Odd {
  std::vector<std::vector<int>> table;
  std::vector<std::optional<Clip>> clips;
  std::optional<Nothing> nothing;
  std::optional<std::vector<std::string>> words;
  static void visit(auto& c, auto&& f) {
    f("table", c.table);
    f("clips", c.clips);
    f("nothing", c.nothing);
    f("words", c.words);
  }
};

std::string random_word(std::mt19937& random) {
  const std::vector<std::string> pieces = {"a",    "~",    "\"",       "\\",   "\n", "\t", " ",
                                           "#",    ": ",   "- ",       "'",    "{",  "]",  ",",
                                           "\x01", "\x7f", "\xc3\xa9", "null", "0"};
  std::string out;
  for (size_t n = random() % 6; n > 0; --n) out += pieces[random() % pieces.size()];
  return out;
}

TEST(Config, F83_WhateverIsPrintedReadsBackTheSame) {
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {
    Odd odd;
    odd.table.resize(random() % 4);
    for (auto& row : odd.table) row.resize(random() % 3, static_cast<int>(random()));
    odd.clips.resize(random() % 3);
    for (auto& clip : odd.clips) {
      if (random() % 2) clip = Clip{std::ldexp(random(), static_cast<int>(random() % 200) - 100)};
    }
    if (random() % 2) odd.nothing.emplace();
    if (random() % 2) odd.words.emplace();
    if (odd.words) {
      for (size_t n = random() % 4; n > 0; --n) odd.words->push_back(random_word(random));
    }
    std::ostringstream os;
    print_config(os, odd);
    Odd back;
    back.nothing.emplace();
    read_config(parse_yaml(os.str(), "odd"), back);
    ASSERT_TRUE(same(odd, back)) << os.str();
    ASSERT_EQ(odd.nothing.has_value(), back.nothing.has_value()) << os.str();
    ASSERT_EQ(odd.words, back.words) << os.str();
  }
}

}  // namespace
}  // namespace troupe
