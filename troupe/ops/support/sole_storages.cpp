#include "troupe/ops/support/sole_storages.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/generated/Functions.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/csrc/autograd/variable.h>

#include <functional>
#include <map>
#include <optional>
#include <set>

#include "troupe/ops/support/kept.h"

namespace troupe {
namespace {

namespace autograd = torch::autograd;

using VisitSaved = std::function<void(const at::Tensor&)>;

void visit_variable(const autograd::SavedVariable& x, const VisitSaved& f) {
  const std::optional<at::Tensor> held = x.get_raw_data();
  if (held && held->defined()) f(*held);
}

void visit_saved(const autograd::Node& node, const VisitSaved& f) {
  namespace generated = autograd::generated;
  if (visit_kept(node, f)) return;
  if (const auto* product = dynamic_cast<const generated::MmBackward0*>(&node)) {
    visit_variable(product->self_, f);
    visit_variable(product->mat2_, f);
  } else if (const auto* sum = dynamic_cast<const generated::AddmmBackward0*>(&node)) {
    visit_variable(sum->mat1_, f);
    visit_variable(sum->mat2_, f);
  }
}

void visit_graph(const TensorList& roots, const VisitSaved& f) {
  std::set<const autograd::Node*> seen;
  std::vector<const autograd::Node*> open;
  const auto meet = [&](const autograd::Node* node) {
    if (node != nullptr && seen.insert(node).second) open.push_back(node);
  };
  for (const at::Tensor& root : roots) {
    if (root.defined()) meet(root.grad_fn().get());
  }
  while (!open.empty()) {
    const autograd::Node* node = open.back();
    open.pop_back();
    visit_saved(*node, f);
    for (const autograd::Edge& edge : node->next_edges()) meet(edge.function.get());
  }
}

// The references to tensors that are accounted for.
class References {
 public:
  void add(const at::Tensor& x) {
    Counted& counted = tensors_[x.unsafeGetTensorImpl()];
    ++counted.references;
    if (counted.x.defined()) return;
    counted.x = x;
    order_.push_back(&counted);
    const auto* view = autograd::impl::get_view_autograd_meta(x);
    if (view == nullptr) return;
    if (view->has_bw_view()) add(view->get_backward_view().base_);
    if (view->has_fw_view() && !view->shared_view_info()) add(view->get_forward_view().base_);
  }

  std::vector<c10::Storage> complete(size_t least_bytes) const {
    struct Shared {
      size_t tensors = 0;
      bool all_known = true;
    };
    std::map<const c10::StorageImpl*, Shared> storages;
    std::vector<const c10::Storage*> order;
    for (const Counted* c : order_) {
      if (!c->x.has_storage()) continue;
      const c10::Storage& storage = c->x.storage();
      Shared& shared = storages[storage.unsafeGetStorageImpl()];
      if (shared.tensors++ == 0) order.push_back(&storage);
      shared.all_known = shared.all_known && c->x.use_count() == c->references + 1;  // and ours
    }
    std::vector<c10::Storage> out;
    for (const c10::Storage* storage : order) {
      const c10::StorageImpl* impl = storage->unsafeGetStorageImpl();
      const Shared& shared = storages.at(impl);
      // What cannot be resized is memory of somebody else, a file's or a neighbor's.
      if (shared.all_known && storage->use_count() == shared.tensors && impl->resizable() &&
          impl->nbytes() >= least_bytes) {
        out.push_back(*storage);
      }
    }
    return out;
  }

 private:
  struct Counted {
    at::Tensor x;
    size_t references = 0;
  };
  std::map<const at::TensorImpl*, Counted> tensors_;
  std::vector<const Counted*> order_;
};

}  // namespace

std::vector<c10::Storage> sole_storages(const TensorList& roots, size_t least_bytes) {
  References references;
  visit_graph(roots, [&](const at::Tensor& x) { references.add(x); });
  return references.complete(least_bytes);
}

}  // namespace troupe
