// `diff`: two sets of tensors, element by element.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "troupe/checkpoint/tensors/tensor_set.h"

namespace troupe {

// What two tensors of one shape differ in. Bits decide whether an element is equal: +0 and -0
// differ, a NaN equals the same NaN. Different types are compared by value, in f64.
struct ValueDifference {
  int64_t elements = 0;
  int64_t different = 0;
  // |a - b| where both are numbers, infinite where one alone is NaN; absent for types whose values
  // are not read (FP8 and smaller): their bits alone are compared.
  std::optional<double> max_abs = {};
  Sizes first = {};                        // the first element that differs, by index
  std::string first_a = {}, first_b = {};  // its values; bytes in hex where values are not read
};

ValueDifference compare_values(Element a, std::span<const std::byte> a_bytes, Element b,
                               std::span<const std::byte> b_bytes, const Sizes& shape);

struct TensorDifference {
  std::string name;
  std::string what;  // "only in A", "is F32 [4] and F32 [5]", "is BF16 and F32", "values"
  ValueDifference values = {};

  static void visit(auto& d, auto&& f) {
    f("name", d.name);
    f("what", d.what);
    f("elements", d.values.elements);
    f("different", d.values.different);
    f("max_abs", d.values.max_abs);
    f("first", d.values.first);
    f("first_a", d.values.first_a);
    f("first_b", d.values.first_b);
  }
};

struct TensorComparison {
  int64_t tensors = 0;  // names in either
  int64_t equal = 0;    // bit for bit, type and shape too
  int64_t elements = 0, different = 0;
  double max_abs = 0;
  std::vector<TensorDifference> differences = {};  // by name

  static void visit(auto& c, auto&& f) {
    f("tensors", c.tensors);
    f("equal", c.equal);
    f("elements", c.elements);
    f("different", c.different);
    f("max_abs", c.max_abs);
    f("differences", c.differences);
  }
};

// What two documents say otherwise, "PATH: A and B" a line; a path that ends in one of `ignored` is
// passed over.
std::vector<std::string> changes(const Yaml& a, const Yaml& b,
                                 const std::vector<std::string>& ignored = {});

// Names that match `only` (names.h; empty: all). Holds one tensor of each side at a time.
TensorComparison compare_tensors(const TensorSet& a, const TensorSet& b,
                                 const std::vector<std::string>& only = {});

}  // namespace troupe
