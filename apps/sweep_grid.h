// The runs of a sweep: every combination of the values that its --set options list, or a random
// sample of them.
//
//   const SweepGrid grid({"train.optimizer.lr=1e-3,3e-3", "model.width=64"});
//   for (const SweepPoint& point : grid.points({}, 1)) ...  // lr=1e-3, lr=3e-3
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace troupe {

// A key of the recipe with the values that it takes, as they were given.
struct SweepAxis {
  std::string path;
  std::vector<std::string> values = {};
  bool operator==(const SweepAxis&) const = default;
  static void visit(auto& a, auto&& f) {
    f("path", a.path);
    f("values", a.values);
  }
};

struct SweepPoint {
  std::string name;                // "lr=1e-3,width=64": of the keys with several values
  std::vector<std::string> sets;   // every --set of this run, in the order given
  std::vector<std::string> swept;  // those of them that other runs have with another value
};

inline constexpr int64_t kMostSweepRuns = 10'000, kMostSweepPoints = 1'000'000;

// The values of "a,b,[c,d],'e,f'": four. A comma in brackets or quotes separates nothing.
std::vector<std::string> split_values(const std::string& text);

class SweepGrid {
 public:
  // Throws one Error with all that is wrong: E2005 for a key that is given twice, for a value that
  // is empty or given twice, for a grid without a key that has several values or with more than
  // kMostSweepPoints combinations, and for checkpoint.dir; E2006 for what is not path=value.
  explicit SweepGrid(const std::vector<std::string>& sets);

  int64_t size() const;                 // combinations
  std::vector<SweepAxis> axes() const;  // those with several values

  // All combinations, the last key's values changing fastest; or `sample` of them, drawn without
  // replacement by `seed`, in the same order. Names are unique and fit for a folder. E2005 for a
  // sample larger than the grid, and for more than kMostSweepRuns runs.
  std::vector<SweepPoint> points(const std::optional<int64_t>& sample, uint64_t seed) const;

 private:
  SweepPoint point(int64_t index) const;

  std::vector<SweepAxis> all_;  // in the order given, also those with one value
};

}  // namespace troupe
