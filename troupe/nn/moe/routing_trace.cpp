#include "troupe/nn/moe/routing_trace.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <charconv>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/publish.h"

namespace troupe {
namespace {

constexpr const char* kMagic = "troupe-trace 1\n";

at::ScalarType narrow_type(int64_t experts) {
  return experts <= std::numeric_limits<int16_t>::max() ? at::kShort : at::kInt;
}

// The file from front to back, refusing what it does not hold.
class Parser {
 public:
  Parser(const std::string& path, const std::string& text) : path_(path), text_(text) {}

  bool done() const { return at_ == text_.size(); }

  std::string_view line() {
    const size_t end = text_.find('\n', at_);
    if (end == std::string::npos) refuse("ends in the middle of a line");
    const auto out = std::string_view(text_).substr(at_, end - at_ + 1);
    at_ = end + 1;
    return out;
  }

  // Are `n` elements of `size` bytes left? Asked before room is made for them.
  void expect(int64_t n, int64_t size) const {
    const auto left = static_cast<int64_t>(text_.size() - at_);
    if (n > left / size) refuse("ends in the middle of a record");
  }

  void bytes(void* out, int64_t n) {
    std::memcpy(out, text_.data() + at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
  }

  [[noreturn]] void refuse(const std::string& what) const {
    fail(Code::kUnreadableData, path_ + '@' + std::to_string(at_), what);
  }

 private:
  const std::string& path_;
  const std::string& text_;
  size_t at_ = 0;
};

struct Header {
  int64_t layer, microbatch, experts, T, K, with_logits;
};

Header read_header(Parser& parser) {
  Header h{};
  const std::string_view line = parser.line();
  const char* at = line.data();
  const char* const end = line.data() + line.size() - 1;
  for (int64_t* field : {&h.layer, &h.microbatch, &h.experts, &h.T, &h.K, &h.with_logits}) {
    if (field != &h.layer && (at == end || *at++ != ' ')) parser.refuse("has a bad record line");
    const auto [next, error] = std::from_chars(at, end, *field);
    if (error != std::errc() || *field < 0) parser.refuse("has a bad record line");
    at = next;
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (at != end || h.experts < 1 || h.experts > kMost || h.T > kMost || h.K > h.experts ||
      h.K > kMost / (h.T + 1) || h.with_logits > 1) {
    parser.refuse("has a bad record line");
  }
  return h;
}

// The first fault of the choices (E22), or nullptr: an expert that there is not, or twice for a
// token. -1 is none.
const char* fault_of(const at::Tensor& ids_TK, int64_t experts) {
  const int64_t K = ids_TK.size(1);
  const auto* const ids = ids_TK.const_data_ptr<int32_t>();
  std::vector<int64_t> last(static_cast<size_t>(experts), -1);  // token that chose each
  for (int64_t slot = 0; slot < ids_TK.numel(); ++slot) {
    const int64_t id = ids[slot], t = slot / K;
    if (id < -1 || id >= experts) return "names an expert that there is not";
    if (id >= 0 && std::exchange(last[static_cast<size_t>(id)], t) == t) {
      return "names an expert twice for a token";
    }
  }
  return nullptr;
}

at::Tensor times_chosen(const at::Tensor& ids_TK, int64_t experts) {
  at::Tensor counts = at::zeros({experts}, at::kLong);
  auto* n = counts.mutable_data_ptr<int64_t>();
  const auto* ids = ids_TK.const_data_ptr<int32_t>();
  for (int64_t slot = 0; slot < ids_TK.numel(); ++slot) {
    if (ids[slot] >= 0) ++n[ids[slot]];
  }
  return counts;
}

void append(std::string& out, const at::Tensor& t) {
  out.append(static_cast<const char*>(t.const_data_ptr()), t.nbytes());
}

// The record's next tensor.
at::Tensor read_tensor(Parser& parser, at::IntArrayRef sizes, at::ScalarType type) {
  const int64_t numel = std::accumulate(sizes.begin(), sizes.end(), int64_t{1}, std::multiplies());
  parser.expect(numel, static_cast<int64_t>(c10::elementSize(type)));
  at::Tensor out = at::empty(sizes, type);
  parser.bytes(out.mutable_data_ptr(), static_cast<int64_t>(out.nbytes()));
  return out;
}

}  // namespace

void RoutingTrace::record(int64_t layer, int64_t microbatch, const at::Tensor& ids_TK,
                          int64_t experts, const at::Tensor& logits_TE) {
  TROUPE_CHECK(ids_TK.dim() == 2, "choices are [T, K]; they are", ids_TK.sizes());
  const at::Tensor ids = ids_TK.to(at::kCPU, at::kInt).contiguous();
  const char* fault = fault_of(ids, experts);
  TROUPE_CHECK(fault == nullptr, "layer", layer, "microbatch", microbatch, "of the trace", fault);
  Choices choices{experts, ids.to(narrow_type(experts)), times_chosen(ids, experts), {}};
  if (logits_TE.defined()) {
    TROUPE_CHECK(logits_TE.sizes() == at::IntArrayRef({ids.size(0), experts}), "logits are [T, E],",
                 ids.size(0), "by", experts, "; they are", logits_TE.sizes());
    choices.logits_TE = logits_TE.detach().to(at::kCPU, at::kFloat).contiguous();
  }
  const bool fresh = records_.try_emplace({layer, microbatch}, std::move(choices)).second;
  TROUPE_CHECK(fresh, "layer", layer, "microbatch", microbatch, "was recorded twice");
}

const RoutingTrace::Choices& RoutingTrace::at(int64_t layer, int64_t microbatch) const {
  const auto found = records_.find({layer, microbatch});
  TROUPE_CHECK(found != records_.end(), "the trace has no layer", layer, "microbatch", microbatch);
  return found->second;
}

at::Tensor RoutingTrace::replay(int64_t layer, int64_t microbatch, c10::Device device) const {
  return at(layer, microbatch).ids_TK.to(at::kInt).to(device);
}

at::Tensor RoutingTrace::counts(int64_t layer, int64_t microbatch) const {
  return at(layer, microbatch).counts_E;
}

at::Tensor RoutingTrace::logits(int64_t layer, int64_t microbatch) const {
  return at(layer, microbatch).logits_TE;
}

RoutingTrace::Sizes RoutingTrace::sizes(int64_t layer, int64_t microbatch) const {
  const Choices& c = at(layer, microbatch);
  return {c.experts, c.ids_TK.size(0), c.ids_TK.size(1)};
}

std::vector<std::pair<int64_t, int64_t>> RoutingTrace::records() const {
  std::vector<std::pair<int64_t, int64_t>> out;
  for (const auto& [key, choices] : records_) out.push_back(key);
  return out;
}

void RoutingTrace::save(Fs& fs, const std::string& path) const {
  std::string out = kMagic;
  for (const auto& [key, c] : records_) {
    std::ostringstream line;
    line << key.first << ' ' << key.second << ' ' << c.experts << ' ' << c.ids_TK.size(0) << ' '
         << c.ids_TK.size(1) << ' ' << c.logits_TE.defined() << '\n';
    out += line.str();
    append(out, c.counts_E);
    append(out, c.ids_TK);
    if (c.logits_TE.defined()) append(out, c.logits_TE);
  }
  publish_file(fs, path, out);
}

RoutingTrace RoutingTrace::load(const std::string& path) {
  const std::string text = read_file(path);
  Parser parser(path, text);
  if (parser.line() != kMagic) parser.refuse("is not a routing trace");
  RoutingTrace out;
  while (!parser.done()) {
    const Header h = read_header(parser);
    if (out.has(h.layer, h.microbatch)) {
      parser.refuse("has layer " + std::to_string(h.layer) + " of microbatch " +
                    std::to_string(h.microbatch) + " twice");
    }
    const at::Tensor counts = read_tensor(parser, {h.experts}, at::kLong);
    const at::Tensor ids = read_tensor(parser, {h.T, h.K}, narrow_type(h.experts)).to(at::kInt);
    if (const char* fault = fault_of(ids, h.experts)) parser.refuse(fault);
    if (!times_chosen(ids, h.experts).equal(counts)) {
      parser.refuse("has counts that differ from those of its choices");
    }
    at::Tensor logits;
    if (h.with_logits != 0) logits = read_tensor(parser, {h.T, h.experts}, at::kFloat);
    out.record(h.layer, h.microbatch, ids, h.experts, logits);
  }
  return out;
}

}  // namespace troupe
