#include "troupe/checkpoint/hf/hf_weights.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"

namespace troupe {
namespace {

constexpr char kScale[] = "_scale_inv", kBlocks[] = "_blocks", kScales[] = "_scales";
constexpr int64_t kGroup = 32;  // MXFP4: numbers that share a scale

// The element range of theirs that a piece looks at.
int64_t last_of(const HfPiece& p, int64_t columns) {
  return p.offset + (p.rows - 1) * p.row_stride + (columns - 1) * p.column_stride;
}

at::Tensor read_entry(const ModelFiles::Tensor& t, int64_t first, int64_t count) {
  at::Tensor out = at::empty({count}, at::TensorOptions(scalar_of(t.entry->element)));
  t.read(first * bits_of(t.entry->element) / 8, bytes_of(out));
  return out;
}

bool is_fused(const ModelFiles& files) {
  return std::ranges::any_of(files.tensors(), [](const auto& t) {
    return t.first.ends_with(".mlp.experts.gate_up_proj");
  });
}

bool has_layer(const ModelFiles& files, int64_t layer) {
  const std::string prefix = "model.layers." + std::to_string(layer) + '.';
  const auto at = files.tensors().lower_bound(prefix);
  return at != files.tensors().end() && at->first.starts_with(prefix);
}

}  // namespace

HfWeights::HfWeights(const std::string& folder) : files_(folder), config_(read_hf_config(folder)) {
  for (const std::string& line : files_.warnings()) config_.notes.push_back(line);
  ModelConfig& model = config_.model;
  if (model.mtp.depth > 0 && !has_layer(files_, model.layers)) {
    model.mtp.depth = 0;
    config_.notes.push_back(folder + " holds no MTP modules, though config.json names some");
  }
  // gpt-oss's own names are joined ones; the table then takes no notice.
  table_ = hf_names(*config_.family, model, is_fused(files_));
  for (HfTensor& t : table_) {
    for (const auto& [part, factor] : config_.factors) {
      if (t.name.find(part) != std::string::npos) t.factor *= factor;
    }
    by_name_[t.name] = &t;
  }
  account();
}

const HfTensor* HfWeights::find(std::string_view ours) const {
  const auto at = by_name_.find(ours);
  return at == by_name_.end() ? nullptr : at->second;
}

const ModelFiles::Tensor* HfWeights::theirs(const std::string& name) const {
  const std::string_view base = config_.family->base_prefix;
  const ModelFiles::Tensor* const found = files_.find(name);
  if (found != nullptr || base.empty() || !name.starts_with(base)) return found;
  return files_.find(name.substr(base.size()));
}

bool HfWeights::is_quantized(const std::string& name) const {
  switch (config_.quantization) {
    case HfQuantization::kNone: return false;
    case HfQuantization::kFp8Blocks: return theirs(name + kScale) != nullptr;
    case HfQuantization::kMxfp4: return theirs(name + kBlocks) != nullptr;
  }
  return false;
}

// Whether theirs is there in the shape that the config asks for.
bool HfWeights::fits(const HfPiece& p, std::vector<std::string>& faults) const {
  const auto check = [&](const std::string& name, const Sizes& wanted, Element element) {
    const ModelFiles::Tensor* const t = theirs(name);
    if (t == nullptr) return faults.push_back("missing: " + name), false;
    if (t->entry->shape == wanted && t->entry->element == element) return true;
    faults.push_back("reshaped: " + name + " is " + std::string(name_of(t->entry->element)) + ' ' +
                     to_text(t->entry->shape) + " in " + t->file->path() +
                     ", config.json asks for " + std::string(name_of(element)) + ' ' +
                     to_text(wanted));
    return false;
  };
  const auto blocks = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
  const size_t dimensions = config_.quantization == HfQuantization::kFp8Blocks ? 2 : 3;
  if (is_quantized(p.name) && p.shape.size() != dimensions) {
    faults.push_back("retyped: " + p.name + " has scales, and is no weight of products");
    return false;
  }
  if (config_.quantization == HfQuantization::kFp8Blocks && is_quantized(p.name)) {
    const Sizes scales = {blocks(p.shape[0], config_.block_rows),
                          blocks(p.shape[1], config_.block_columns)};
    return check(p.name, p.shape, Element::kF8E4M3) &&
           check(p.name + kScale, scales, Element::kF32);
  }
  if (config_.quantization == HfQuantization::kMxfp4 && is_quantized(p.name)) {
    const int64_t E = p.shape[0], in = p.shape[1], out = p.shape[2];
    return check(p.name + kBlocks, {E, out, in / kGroup, kGroup / 2}, Element::kU8) &&
           check(p.name + kScales, {E, out, in / kGroup}, Element::kU8);
  }
  const ModelFiles::Tensor* const t = theirs(p.name);
  const Element is = t == nullptr ? Element::kBF16 : t->entry->element;
  const bool number = is == Element::kF32 || is == Element::kBF16 || is == Element::kF16;
  if (t != nullptr && !number) {
    faults.push_back("retyped: " + p.name + " is " + std::string(name_of(is)) +
                     ", which config.json does not explain");
    return false;
  }
  return check(p.name, p.shape, is);
}

void HfWeights::account() {
  std::vector<std::string> faults;
  std::set<std::string> used;
  for (const HfTensor& ours : table_) {
    for (const HfPiece& piece : ours.pieces) {
      if (!used.insert(piece.name).second) continue;
      fits(piece, faults);
      for (const char* more : {kScale, kBlocks, kScales}) used.insert(piece.name + more);
    }
    for (const std::string& copy : ours.copies) used.insert(copy);
  }
  const std::string base(config_.family->base_prefix);
  for (const auto& [name, tensor] : files_.tensors()) {
    if (used.contains(name) || used.contains(base + name)) continue;
    if (hf_skippable(*config_.family, config_.model, name)) {
      skipped_.push_back(name);
      continue;
    }
    faults.push_back("unused: " + name + ' ' + std::string(name_of(tensor.entry->element)) + ' ' +
                     to_text(tensor.entry->shape));
  }
  if (faults.empty()) return;
  std::string text =
      "does not agree with its config.json in " + std::to_string(faults.size()) + " tensors";
  for (const std::string& line : faults) text += "\n  " + line;
  fail(Code::kStateMismatch, files_.folder(), text);
}

at::ScalarType HfWeights::type_of(const HfTensor& ours) const {
  const std::string& name = ours.pieces.at(0).name;
  // Which holds the product of any half by it.
  if (ours.factor != 1 || ours.offset != 0) return at::kFloat;
  if (is_quantized(name)) return at::kBFloat16;
  return scalar_of(theirs(name)->entry->element);
}

at::Tensor HfWeights::range(const HfPiece& piece, int64_t first, int64_t count) const {
  if (!is_quantized(piece.name)) return read_entry(*theirs(piece.name), first, count);
  return config_.quantization == HfQuantization::kFp8Blocks ? fp8_range(piece, first, count)
                                                            : mxfp4_range(piece, first, count);
}

// value = fp8 * scale of its block of block_rows x block_columns.
at::Tensor HfWeights::fp8_range(const HfPiece& piece, int64_t first, int64_t count) const {
  at::Tensor out = read_entry(*theirs(piece.name), first, count).to(at::kFloat);
  const ModelFiles::Tensor& s = *theirs(piece.name + kScale);
  const at::Tensor scales = read_entry(s, 0, Box::whole(s.entry->shape).numel());
  const auto* const scale = scales.const_data_ptr<float>();
  auto* const value = out.mutable_data_ptr<float>();
  const int64_t columns = piece.shape[1], across = s.entry->shape[1];
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = (first + i) / columns, column = (first + i) % columns;
    value[i] *= scale[row / config_.block_rows * across + column / config_.block_columns];
  }
  return out;
}

// [E, out, in / 32, 16] bytes, the low half first, times 2^(scale - 127): read as [E, in, out].
at::Tensor HfWeights::mxfp4_range(const HfPiece& piece, int64_t first, int64_t count) const {
  constexpr float kValues[] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.f, -.5f, -1, -1.5f, -2, -3, -4, -6};
  const int64_t in = piece.shape[1], n_out = piece.shape[2], each = in * n_out;
  const int64_t begin = first / each, end = (first + count - 1) / each + 1;  // whole experts
  const at::Tensor blocks =
      read_entry(*theirs(piece.name + kBlocks), begin * each / 2, (end - begin) * each / 2);
  const at::Tensor scales = read_entry(*theirs(piece.name + kScales), begin * each / kGroup,
                                       (end - begin) * each / kGroup);
  const auto* const bytes = blocks.const_data_ptr<uint8_t>();
  const auto* const scale = scales.const_data_ptr<uint8_t>();
  at::Tensor out = at::empty({(end - begin) * each}, at::kFloat);
  auto* const value = out.mutable_data_ptr<float>();
  for (int64_t e = 0; e < end - begin; ++e) {
    for (int64_t o = 0; o < n_out; ++o) {
      for (int64_t i = 0; i < in; ++i) {
        const int64_t at = e * each + o * in + i;
        const int code = bytes[at / 2] >> (i % 2 == 0 ? 0 : 4) & 15;
        value[e * each + i * n_out + o] =
            std::ldexp(kValues[code], static_cast<int>(scale[at / kGroup]) - 127);
      }
    }
  }
  return out.narrow(0, first - begin * each, count);
}

at::Tensor HfWeights::read(const HfTensor& ours) const {
  at::Tensor out = at::empty(ours.shape, at::TensorOptions(type_of(ours)));
  const at::Tensor matrix = out.view({ours.rows, ours.columns});
  for (const HfPiece& p : ours.pieces) {
    if (p.rows == 0 || ours.columns == 0) continue;
    const at::Tensor source = range(p, p.offset, last_of(p, ours.columns) - p.offset + 1);
    matrix.narrow(0, p.row, p.rows)
        .copy_(source.as_strided({p.rows, ours.columns}, {p.row_stride, p.column_stride}));
  }
  for (const std::string& copy : ours.copies) {
    const ModelFiles::Tensor* const t = theirs(copy);
    if (t == nullptr) continue;
    if (!at::equal(read_entry(*t, 0, Box::whole(t->entry->shape).numel()).to(out.scalar_type()),
                   out.view(-1))) {
      fail(Code::kStateMismatch, files_.folder(), copy, "should repeat", ours.pieces[0].name,
           "and differs from it");
    }
  }
  if (ours.factor != 1) out.mul_(ours.factor);
  if (ours.offset != 0) out.add_(ours.offset);
  return out;
}

std::vector<std::string> load_hf(const HfWeights& weights, const CheckpointState& state,
                                 const std::string& prefix) {
  std::vector<std::string> faults, notes = weights.config().notes;
  std::vector<std::pair<const CheckpointState::Part*, const HfTensor*>> wanted;
  std::set<std::string> used;
  for (const CheckpointState::Part& part : state.parts()) {
    const TensorBox& t = part.tensor;
    if (!t.name.starts_with(prefix)) continue;
    const std::string name = t.name.substr(prefix.size());
    const HfTensor* const theirs = weights.find(name);
    if (theirs == nullptr) {
      faults.push_back("missing: " + name + ' ' + to_text(t.box.global));
    } else if (theirs->shape != t.box.global) {
      faults.push_back("reshaped: " + name + " is " + to_text(theirs->shape) + " there and " +
                       to_text(t.box.global) + " here");
    } else {
      used.insert(name);
      wanted.emplace_back(&part, theirs);
    }
  }
  for (const HfTensor& t : weights.table()) {
    if (!used.contains(t.name)) faults.push_back("unused: " + t.name + ' ' + to_text(t.shape));
  }
  if (!faults.empty()) {
    std::string text = "differs from the model in " + std::to_string(faults.size()) + " tensors";
    for (const std::string& line : faults) text += "\n  " + line;
    fail(Code::kStateMismatch, "the imported weights", text);
  }
  for (const auto& [part, theirs] : wanted) {
    at::Tensor box = weights.read(*theirs);
    for (size_t d = 0; d < theirs->shape.size(); ++d) {
      const auto dim = static_cast<int64_t>(d);
      box = box.narrow(dim, part->tensor.box.offset[d], part->tensor.box.size[d]);
    }
    part->fill(box.reshape({-1}));
  }
  return notes;
}

}  // namespace troupe
