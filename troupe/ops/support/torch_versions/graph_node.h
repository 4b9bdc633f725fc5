// Nodes of autograd's graph, for PyTorch 2.11 to 2.15. Code that differs between PyTorch's versions
// is in this folder alone (tools/check_torch_versions.py).
//
//   version     owner of a node      a node that only weak pointers hold
//   2.11, 2.12  std::shared_ptr      is destroyed
//   2.13 on     c10::intrusive_ptr   stays in memory; its release_resources() frees what it holds
//   2.14 on     the same             hooks of torch.autograd.graph.node_creation_hook see it once
//                                    fire_node_creation_hooks() is called with it
#pragma once

#include <torch/csrc/autograd/function.h>

#include <memory>
#include <utility>

#include "troupe/ops/support/torch_versions/at_least.h"

namespace troupe {

#if TROUPE_TORCH_AT_LEAST(13)

template <class Node>
using NodePtr = c10::intrusive_ptr<Node>;
using WeakNode = c10::weak_intrusive_ptr<torch::autograd::Node>;

template <class Node, class... Arguments>
NodePtr<Node> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
}

// Null where the node is of another class.
template <class Node>
NodePtr<Node> node_as(const NodePtr<torch::autograd::Node>& node) {
  auto* const as = dynamic_cast<Node*>(node.get());
  return as == nullptr ? nullptr : NodePtr<Node>::unsafe_reclaim_from_nonowning(as);
}

#else

template <class Node>
using NodePtr = std::shared_ptr<Node>;
using WeakNode = std::weak_ptr<torch::autograd::Node>;

template <class Node, class... Arguments>
NodePtr<Node> make_node(Arguments&&... arguments) {
  return std::make_shared<Node>(std::forward<Arguments>(arguments)...);
}

// Null where the node is of another class.
template <class Node>
NodePtr<Node> node_as(const NodePtr<torch::autograd::Node>& node) {
  return std::dynamic_pointer_cast<Node>(node);
}

#endif

// A node of our own. `let_go` frees all that it holds, when no owner is left. Before 2.13 nobody calls
// it: the destructor comes at that moment.
class GraphNode : public torch::autograd::Node {
 public:
  using Node::Node;
  virtual void let_go() = 0;
#if TROUPE_TORCH_AT_LEAST(13)
  void release_resources() override {
    Node::release_resources();
    let_go();
  }
#endif
};

// To be called once the node's outputs know it and what it saves is saved.
inline void announce(const NodePtr<torch::autograd::Node>& node) {
#if TROUPE_TORCH_AT_LEAST(14)
  torch::autograd::fire_node_creation_hooks(node);
#else
  static_cast<void>(node);
#endif
}

}  // namespace troupe
