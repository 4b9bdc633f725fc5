// torch.classes.troupe.Checkpoint: what python/troupe/checkpoint.py reads checkpoints with.
#include <ATen/ops/empty.h>
#include <torch/custom_class.h>

#include <string>
#include <string_view>
#include <vector>

#include "troupe/checkpoint/files/reader.h"
#include "troupe/checkpoint/folder/find_resume.h"
#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/core/text/suggest.h"

namespace troupe {
namespace {

class PythonCheckpoint : public torch::CustomClassHolder {
 public:
  // A run's folder, whose newest complete step it is, or one of its steps.
  explicit PythonCheckpoint(const std::string& path) : reader_(find_step(run_path(path)).folder) {}

  std::string folder() const { return reader_.folder(); }
  int64_t step() const { return reader_.manifest().step; }
  std::vector<std::string> names() const {
    std::vector<std::string> out;
    for (const auto& [name, tensor] : reader_.tensors()) out.push_back(name);
    return out;
  }

  // Its sizes and type, without its data.
  at::Tensor meta(const std::string& name) const {
    const CheckpointReader::Tensor& t = found(name);
    return at::empty(t.global, at::TensorOptions(scalar_of(t.element)).device(at::kMeta));
  }

  at::Tensor read(const std::string& name, const std::vector<int64_t>& offset,
                  const std::vector<int64_t>& size) const {
    const CheckpointReader::Tensor& t = found(name);
    const Box box{t.global, offset, size};
    if (!is_inside(box)) {
      fail(Code::kBadValue, name, "is", to_text(box.global) + ": no box at", to_text(offset),
           "of sizes", to_text(size));
    }
    at::Tensor out = at::empty(size, scalar_of(t.element));
    if (out.numel() > 0) reader_.read(t, name, box, bytes_of(out), Faults());
    return out;
  }

 private:
  const CheckpointReader::Tensor& found(const std::string& name) const {
    const CheckpointReader::Tensor* const tensor = reader_.find(name);
    if (tensor != nullptr) return *tensor;
    std::vector<std::string_view> known;
    for (const auto& [other, of_other] : reader_.tensors()) known.push_back(other);
    const std::string guess(nearest(name, known));
    fail(Code::kStateMismatch, reader_.folder(), "has no tensor \"" + name + '"',
         guess.empty() ? "" : "; did you mean \"" + guess + "\"?");
  }

  CheckpointReader reader_;
};

}  // namespace
}  // namespace troupe

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  m.class_<troupe::PythonCheckpoint>("Checkpoint")
      .def(torch::init<std::string>())
      .def("folder", &troupe::PythonCheckpoint::folder)
      .def("step", &troupe::PythonCheckpoint::step)
      .def("names", &troupe::PythonCheckpoint::names)
      .def("meta", &troupe::PythonCheckpoint::meta)
      .def("read", &troupe::PythonCheckpoint::read);
}
