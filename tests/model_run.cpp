// Runs a whole model on tensors that Python made, for tests/hf_models_test.py:
//   model_run FAMILY CONFIG.yaml IN.pt OUT.pt
// IN holds ids [B, S], labels [B, S] and every tensor of a Hugging Face file under its name there,
// perhaps documents [B, S]. OUT gets logits, loss (the mean over the targets), mtp where there is
// one, and the gradient of the loss under the names of transformers' modules ("grad." + name).
// Both are dictionaries of torch.save.
#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <cstdio>
#include <exception>
#include <map>

#include "tests/pickled.h"
#include "troupe/checkpoint/hf/families/families.h"
#include "troupe/core/config/config.h"
#include "troupe/nn/model/model.h"

namespace troupe {
namespace {

// The part of theirs that is `p`, as rows and columns of ours.
at::Tensor picture(const at::Tensor& theirs, const HfTensor& t, const HfPiece& p) {
  TROUPE_CHECK(theirs.sizes() == p.shape, p.name, "has sizes", theirs.sizes());
  return theirs.as_strided({p.rows, t.columns}, {p.row_stride, p.column_stride}, p.offset);
}

// One of our tensors, an expert's apart, as a matrix.
std::map<std::string, at::Tensor> matrices(Model& model, bool gradients) {
  std::map<std::string, at::Tensor> out;
  model.for_each_param(-1, [&](const std::string& name, Param& p) {
    const at::Tensor x = gradients ? p.value.grad() : p.value.detach();
    if (!x.defined()) return;
    const int64_t columns =
        p.global.size() > 1 && !(p.per_expert && p.global.size() == 2) ? p.global.back() : 1;
    if (!p.per_expert) {
      out[name] = x.view({-1, columns});
      return;
    }
    for (size_t i = 0; i < p.experts.size(); ++i) {
      out[expert_name(name, p.experts[i])] = x[static_cast<int64_t>(i)].reshape({-1, columns});
    }
  });
  return out;
}

void fill(Model& model, const HfFamily& family, const Tensors& in) {
  model.for_each_param(-1, [](const std::string& name, Param& p) { initialize(p, name, 1); });
  const auto ours = matrices(model, false);
  size_t found = 0;
  for (const HfTensor& t : hf_names(family, model.config())) {
    TROUPE_CHECK(ours.count(t.name) == 1, t.name, "is no parameter");
    ++found;
    for (const HfPiece& p : t.pieces) {
      TROUPE_CHECK(in.contains(p.name), p.name, "is missing");
      ours.at(t.name).narrow(0, p.row, p.rows).copy_(picture(in.at(p.name), t, p) + t.offset);
    }
  }
  size_t wanted = 0;
  for (const auto& [name, value] : ours) wanted += name.find(".balance.") == std::string::npos;
  TROUPE_CHECK(found == wanted, found, "tensors in the table, and", wanted, "in the model");
}

void run(char** argv) {
  const HfFamily* const found = find_hf_family(argv[1]);
  TROUPE_CHECK(found != nullptr, "no family", argv[1]);
  const HfFamily& family = *found;
  ModelConfig config;
  read_config(load_yaml(argv[2]), config);
  const std::unique_ptr<Model> model = build_model(config);
  const Tensors in = load_pickled(argv[3]);
  fill(*model, family, in);

  Batch batch{.ids_BS = in.at("ids"), .labels_BS = in.at("labels")};
  if (in.contains("documents")) batch.documents_BS = in.at("documents");
  const Context context = {.training = true};
  const int64_t head = model->num_units() - 1;
  at::Tensor h;
  for (int64_t unit = 0; unit < head; ++unit) h = model->forward(unit, h, batch, context).h;
  Tensors out;
  {
    const at::NoGradGuard no_grad;
    const int64_t rows = batch.ids_BS.size(0), tokens = batch.ids_BS.size(1);
    const at::Tensor x = h.narrow(0, 0, rows * tokens);  // before the states of MTP modules
    out.insert("logits", model->logits(x.view({rows, tokens, -1})));
  }
  const UnitResult last = model->forward(head, h, batch, context);
  const at::Tensor loss = last.loss_sum / last.weight_sum;
  if (last.mtp_sum.defined()) out.insert("mtp", last.mtp_sum.detach());
  loss.backward();
  out.insert("loss", loss.detach());
  const auto gradients = matrices(*model, true);
  for (const HfTensor& t : hf_names(family, config, /*fused=*/true)) {
    if (gradients.count(t.name) == 0) continue;
    for (const HfPiece& p : t.pieces) {
      const std::string name = "grad." + p.name;
      if (!out.contains(name)) out.insert(name, at::zeros(p.shape));
      picture(out.at(name), t, p).copy_(gradients.at(t.name).narrow(0, p.row, p.rows));
    }
  }
  save_pickled(argv[4], out);
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  if (argc != 5) return std::fprintf(stderr, "usage: model_run FAMILY CONFIG IN.pt OUT.pt\n"), 2;
  try {
    troupe::run(argv);
  } catch (const std::exception& e) {
    return std::fprintf(stderr, "%s\n", e.what()), 1;
  }
  return 0;
}
