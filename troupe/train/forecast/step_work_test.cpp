#include "troupe/train/forecast/step_work.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "troupe/train/recipe/recipe_of_test.h"

namespace troupe {
namespace {

std::string small(const std::string& more) {
  return "model: {layers: 4, width: 32, heads: 4, vocab: 64, max_positions: 32, ffn: 64, moe: "
         "{experts: 4, top_k: 2, hidden: 16}" +
         more + "}\ndata: {sequence: 16}\n";
}

// A pipeline rank builds its own units, and computes the work of the others from the config.
TEST(StepWork, PartsOfAModelNameTheirFirstReadersAsTheWholeDoes) {
  for (const std::string more : {"", ", tie_embeddings: true", ", mtp: {depth: 2}",
                                 ", tie_embeddings: true, mtp: {depth: 1}", ", positions: learned",
                                 ", positions: learned, tie_embeddings: true"}) {
    const Recipe r = recipe_of(small(more));
    const auto whole = build_model(r.model);
    std::map<std::string, int> want;  // by looking at every unit
    for (int unit = 0; unit < static_cast<int>(whole->num_units()); ++unit) {
      whole->for_each_param(unit,
                            [&](const std::string& name, Param&) { want.emplace(name, unit); });
    }
    EXPECT_EQ(first_readers(*whole), want) << more;
    std::map<std::string, int> together;
    for (int64_t unit = 0; unit < whole->num_units(); ++unit) {
      const auto part = build_model(r.model, {.units = {unit}});
      for (const auto& [name, first] : first_readers(*part)) {
        EXPECT_EQ(first, want.at(name)) << more << ' ' << name;
        together.emplace(name, first);
      }
    }
    EXPECT_EQ(together, want) << more;
  }
}

TEST(StepWork, TiesAreThoseOfTheModelsTables) {
  for (const std::string more : {"", ", tie_embeddings: true", ", mtp: {depth: 2}"}) {
    Recipe r = recipe_of(small(more));
    const auto whole = build_model(r.model);
    std::vector<std::pair<int, int>> want;
    const std::map<std::string, int> first = first_readers(*whole);
    for (int unit = 0; unit < static_cast<int>(whole->num_units()); ++unit) {
      whole->for_each_param(unit, [&](const std::string& name, Param&) {
        const std::pair tie{first.at(name), unit};
        if (tie.first != unit && (want.empty() || want.back() != tie)) want.push_back(tie);
      });
    }
    const StepWork work = step_work(r, resolved(r.parallel, {}));
    EXPECT_EQ(work.tied, want) << more;
    EXPECT_EQ(work.chunks, whole->num_units());
  }
}

}  // namespace
}  // namespace troupe
