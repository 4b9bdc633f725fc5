// `diff --modules`: the first module of a model whose output differs from another program's, or from
// another checkpoint's.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace troupe {

struct ModuleDifference {
  std::string name;
  std::vector<int64_t> shape;
  double max_abs = 0;  // largest |a - b|; infinite where one is NaN
  double max_rel = 0;  // of the largest |b| of the module
  bool differs = false;

  static void visit(auto& d, auto&& f) {
    f("name", d.name);
    f("shape", d.shape);
    f("max_abs", d.max_abs);
    f("max_rel", d.max_rel);
    f("differs", d.differs);
  }
};

struct ModuleComparison {
  double within = 0;                           // a module differs where its max_rel is above
  std::string first = {};                      // the first one that differs; empty: none
  std::vector<ModuleDifference> modules = {};  // in the order of computation

  static void visit(auto& c, auto&& f) {
    f("within", c.within);
    f("first", c.first);
    f("modules", c.modules);
  }
};

// `a`: a run, one of its steps, or a model hub's folder, in f32 on the CPU. `b`: another of them,
// which computes the same ids (sample_ids), its modules by our names; or a .safetensors file that
// troupe.record_modules wrote, whose ids `a` computes, its modules by the names of transformers.
// Such a file with ids beyond the vocabulary is E3102. Where modules are missing or have other
// shapes: E4005, which lists them all.
ModuleComparison compare_modules(const std::string& a, const std::string& b, double within);

}  // namespace troupe
