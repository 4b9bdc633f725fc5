#include "troupe/checkpoint/gguf/write_gguf.h"

#include <ATen/core/Tensor.h>

#include <span>
#include <string_view>
#include <utility>

#include "troupe/checkpoint/state/tensor_element.h"
#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/number/round.h"

namespace troupe {
namespace {

// llama.cpp's numbers for what most of a file's weights are, and of its blocks' form.
uint32_t gguf_file_type(GgufType type) {
  switch (type) {
    case GgufType::kF32: return 0;
    case GgufType::kQ8_0: return 7;
    case GgufType::kBF16: return 32;
  }
  fail(Code::kBrokenContract, "GgufType", "is none of the three");
}
constexpr uint32_t kBlocksVersion = 2;

std::vector<GgufField> all_fields(const GgufModel& model, const GgufOptions& options) {
  std::vector<GgufField> out = {
      {"general.architecture", model.architecture},
      {"general.type", std::string("model")},
      {"general.name", options.name},
      {"general.alignment", static_cast<uint32_t>(kGgufAlignment)},
      {"general.file_type", gguf_file_type(options.type)},
  };
  if (options.type == GgufType::kQ8_0)
    out.push_back({"general.quantization_version", kBlocksVersion});
  out.insert(out.end(), model.fields.begin(), model.fields.end());
  out.insert(out.end(), options.vocabulary.begin(), options.vocabulary.end());
  return out;
}

GgufEntry gguf_entry(const GgufTensor& t, GgufType asked) {
  const GgufEntry out{t.name, t.shape, t.f32 ? GgufType::kF32 : asked};
  if (out.type == GgufType::kQ8_0 && out.shape.back() % kQ8Block != 0) {
    fail(Code::kBadModelConfig, "--gguf q8_0", t.name, "has rows of", out.shape.back(),
         "numbers, and q8_0 cuts rows into blocks of 32; --gguf bf16 has no blocks");
  }
  return out;
}

class GgufParts {
 public:
  explicit GgufParts(const TensorOf& tensor_of) : tensor_of_(tensor_of) {}

  // [rows, columns], contiguous; transposed and turned as theirs is.
  at::Tensor make(const GgufTensor& t, const GgufPart& part) {
    const at::Tensor all = matrix(part.ours);
    if (part.row + part.rows > all.size(0)) {
      fail(Code::kStateMismatch, "the checkpoint", "tensor", part.ours, "has", all.size(0),
           "rows, and", t.name, "is made of", part.rows, "from row", part.row);
    }
    at::Tensor out = all.narrow(0, part.row, part.rows);
    if (part.transposed) out = out.transpose(0, 1);
    if (t.turned_heads > 0) out = turned(out, t.turned_heads, t.shape.front());
    return out.contiguous();
  }

 private:
  // Row s h/2 + j of a head of h rows becomes row 2 j + s.
  static at::Tensor turned(const at::Tensor& m, int64_t heads, int64_t rows) {
    return m.reshape({heads, 2, rows / heads / 2, -1}).transpose(1, 2).reshape(m.sizes());
  }

  // The last one stays: several of theirs, or parts, are made of it one after the other.
  at::Tensor matrix(const std::string& ours) {
    if (ours != name_) value_ = tensor_of_(ours), name_ = ours;
    return value_.dim() == 1 ? value_.unsqueeze(0) : value_.reshape({-1, value_.size(-1)});
  }

  const TensorOf& tensor_of_;
  std::string name_;
  at::Tensor value_;
};

void write_numbers(NewFile& file, const std::string& name, GgufType type, const at::Tensor& part) {
  if (type == GgufType::kBF16) return file.write(bytes_of(part.to(at::kBFloat16).contiguous()));
  const at::Tensor numbers = part.to(at::kFloat).contiguous();
  if (type == GgufType::kF32) return file.write(bytes_of(numbers));
  std::vector<std::byte> blocks;
  const std::span<const float> all(numbers.const_data_ptr<float>(),
                                   static_cast<size_t>(numbers.numel()));
  if (!append_q8_0(all, blocks)) {
    fail(Code::kStateMismatch, "--gguf q8_0", name,
         "holds a number that is not finite or is above 127 * 65504, which q8_0 has no scale for");
  }
  file.write(blocks);
}

void write_tensor(NewFile& file, const GgufTensor& t, const GgufEntry& entry, GgufParts& parts) {
  const int64_t begin = file.size(), bytes = gguf_bytes(entry);
  file.write(std::as_bytes(std::span(t.values)));
  for (const GgufPart& part : t.parts) write_numbers(file, t.name, entry.type, parts.make(t, part));
  if (file.size() - begin != bytes) {
    fail(Code::kStateMismatch, "the checkpoint", t.name, "would have", file.size() - begin,
         "bytes and the model's config asks for", bytes);
  }
  const std::string zeros(static_cast<size_t>(round_up(bytes, kGgufAlignment) - bytes), '\0');
  file.write(std::string_view(zeros));
}

}  // namespace

int64_t write_gguf(const GgufModel& model, const TensorOf& tensor_of, const std::string& path,
                   const GgufOptions& options, Fs& fs) {
  if (is_there(path) && !options.force)
    fail(Code::kFileFailed, path, "is there already; --force replaces it");
  std::vector<GgufEntry> entries;
  for (const GgufTensor& t : model.tensors) entries.push_back(gguf_entry(t, options.type));
  publish_file(fs, path, [&](NewFile& file) {
    file.write(gguf_header(all_fields(model, options), entries));
    GgufParts parts(tensor_of);
    for (size_t i = 0; i < entries.size(); ++i) {
      write_tensor(file, model.tensors[i], entries[i], parts);
    }
  });
  return std::ssize(entries);
}

}  // namespace troupe
