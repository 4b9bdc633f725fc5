// `inspect` of tensors: how many of which type, and whether their values are numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "troupe/checkpoint/tensors/tensor_set.h"

namespace troupe {

struct TensorRow {
  std::string name, dtype;
  Sizes shape;
  int64_t unsound = 0;  // NaN and infinite values; of BOOL, bytes that are neither 0 nor 1
  static void visit(auto& r, auto&& f) {
    f("name", r.name);
    f("dtype", r.dtype);
    f("shape", r.shape);
    f("unsound", r.unsound);
  }
};

struct TypeTotal {
  std::string dtype;
  int64_t tensors = 0, elements = 0, bytes = 0;
  static void visit(auto& t, auto&& f) {
    f("dtype", t.dtype);
    f("tensors", t.tensors);
    f("elements", t.elements);
    f("bytes", t.bytes);
  }
};

struct TensorsSummary {
  std::string kind, path;
  std::string base = "";  // of a checkpoint that lacks frozen weights, which are counted here too
  int64_t elements = 0, bytes = 0;
  int64_t unsound = 0;
  std::vector<TypeTotal> types = {};    // by name
  std::vector<TensorRow> tensors = {};  // by name
  std::vector<std::string> warnings = {};
  static void visit(auto& s, auto&& f) {
    f("kind", s.kind);
    f("path", s.path);
    f("base", s.base);
    f("elements", s.elements);
    f("bytes", s.bytes);
    f("unsound", s.unsound);
    f("types", s.types);
    f("warnings", s.warnings);
    f("tensors", s.tensors);
  }
};

// With `values` reads everything, of a checkpoint against its checksums; else headers alone.
TensorsSummary describe_tensors(const TensorSet& set, bool values);

}  // namespace troupe
