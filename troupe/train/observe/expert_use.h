// Which tokens and which sources of a data set go to which expert. With n(s, e) the choices that
// tokens of source s made for expert e of a layer of E:
//
//   share of a source   E n(s, e) / n(s)    1: as if its tokens were shared out evenly
//   bits                I(source; expert)   what an expert's number tells of the source; 0: nothing
//   a token's part      n(t, e) / n(t)      of the choices of all its occurrences
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

struct ExpertUse {
  struct Source {
    std::string name;
    int64_t tokens = 0;  // that were looked at
    static void visit(auto& s, auto&& f) {
      f("name", s.name);
      f("tokens", s.tokens);
    }
  };
  struct Token {
    int64_t id = 0;
    std::string text;  // empty: no tokenizer
    double part = 0;
    int64_t seen = 0;
    static void visit(auto& t, auto&& f) {
      f("id", t.id);
      f("text", t.text);
      f("part", t.part);
      f("seen", t.seen);
    }
  };
  struct Expert {
    double share = 0;            // of all choices, times E
    std::vector<double> shares;  // of each source
    std::vector<Token> tokens;   // that choose it most often, among tokens that occur often
    static void visit(auto& e, auto&& f) {
      f("share", e.share);
      f("shares", e.shares);
      f("tokens", e.tokens);
    }
  };
  struct Layer {
    int64_t layer = 0;
    double bits = 0;
    std::vector<Expert> experts;
    static void visit(auto& l, auto&& f) {
      f("layer", l.layer);
      f("bits", l.bits);
      f("experts", l.experts);
    }
  };
  int64_t step = 0;  // of the checkpoint
  std::vector<Source> sources;
  std::vector<Layer> layers;
  static void visit(auto& u, auto&& f) {
    f("step", u.step);
    f("sources", u.sources);
    f("layers", u.layers);
  }
};

// The quoted text, or the id where there is no tokenizer.
std::string spelled(const ExpertUse::Token& token);

// Mutual information in one layer, n[source][expert].
double information_bits(const std::vector<std::vector<int64_t>>& n);

// RUN/experts.json, which the report shows; nothing where it is not there.
inline constexpr const char* kExpertsFile = "experts.json";
std::optional<ExpertUse> read_expert_use(const std::string& run);

}  // namespace troupe
