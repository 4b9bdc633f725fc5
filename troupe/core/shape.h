// A model's sizes, by which modules allocate and plan/ counts. Letters: STYLE.md, section 4.
#pragma once

#include <cstdint>

namespace troupe {

struct Shape {
  int64_t layers = 0;
  int64_t width = 0;    // D
  int64_t hidden = 0;   // F, of one expert
  int64_t experts = 0;  // E, over all ranks
  int64_t top_k = 0;    // K

  static void visit(auto& s, auto&& f) {
    f("layers", s.layers);
    f("width", s.width);
    f("hidden", s.hidden);
    f("experts", s.experts);
    f("top_k", s.top_k);
  }
};

}  // namespace troupe
