#include "troupe/nn/routing_trace.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <limits>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/file.h"
#include "troupe/core/publish.h"

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

  void bytes(void* out, int64_t n) {
    if (n > static_cast<int64_t>(text_.size() - at_)) refuse("ends in the middle of a record");
    std::memcpy(out, text_.data() + at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
  }

  [[noreturn]] void refuse(const char* what) const {
    fail(Code::kUnreadableData, path_ + '@' + std::to_string(at_), what);
  }

 private:
  const std::string& path_;
  const std::string& text_;
  size_t at_ = 0;
};

struct Header {
  int64_t layer, microbatch, experts, T, K;
};

Header read_header(Parser& parser) {
  Header h{};
  const std::string_view line = parser.line();
  const char* at = line.data();
  const char* const end = line.data() + line.size() - 1;
  for (int64_t* field : {&h.layer, &h.microbatch, &h.experts, &h.T, &h.K}) {
    if (field != &h.layer && (at == end || *at++ != ' ')) parser.refuse("has a bad record line");
    const auto [next, error] = std::from_chars(at, end, *field);
    if (error != std::errc() || *field < 0) parser.refuse("has a bad record line");
    at = next;
  }
  constexpr int64_t kMost = std::numeric_limits<int32_t>::max();
  if (at != end || h.experts < 1 || h.T > kMost || h.K > h.experts || h.K > kMost / (h.T + 1)) {
    parser.refuse("has a bad record line");
  }
  return h;
}

// E22: in range (-1: none), and no expert twice for a token.
void check_choices(const at::Tensor& ids_TK, int64_t experts, const Parser& parser) {
  const int64_t K = ids_TK.size(1);
  const auto* row = ids_TK.const_data_ptr<int32_t>();
  for (int64_t t = 0; t < ids_TK.size(0); ++t, row += K) {
    for (int64_t j = 0; j < K; ++j) {
      if (row[j] < -1 || row[j] >= experts) parser.refuse("names an expert that there is not");
      if (row[j] >= 0 && std::find(row, row + j, row[j]) != row + j) {
        parser.refuse("names an expert twice for a token");
      }
    }
  }
}

}  // namespace

void RoutingTrace::record(int64_t layer, int64_t microbatch, const at::Tensor& ids_TK,
                          int64_t experts) {
  TROUPE_CHECK(ids_TK.dim() == 2, "choices are [T, K]; they are", ids_TK.sizes());
  const bool fresh = records_
                         .try_emplace({layer, microbatch}, experts,
                                      ids_TK.to(at::kCPU, narrow_type(experts)).contiguous())
                         .second;
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
  const Choices& c = at(layer, microbatch);
  const at::Tensor ids = c.ids_TK.reshape({-1}).to(at::kLong);
  return ids.masked_select(ids.ge(0)).bincount({}, c.experts);
}

void RoutingTrace::save(const std::string& path) const {
  std::string out = kMagic;
  for (const auto& [key, c] : records_) {
    std::ostringstream line;
    line << key.first << ' ' << key.second << ' ' << c.experts << ' ' << c.ids_TK.size(0) << ' '
         << c.ids_TK.size(1) << '\n';
    out += line.str();
    out.append(static_cast<const char*>(c.ids_TK.const_data_ptr()), c.ids_TK.nbytes());
  }
  Fs fs;
  publish_file(fs, path, out);
}

RoutingTrace RoutingTrace::load(const std::string& path) {
  const std::string text = read_file(path);
  Parser parser(path, text);
  if (parser.line() != kMagic) parser.refuse("is no routing trace");
  RoutingTrace out;
  while (!parser.done()) {
    const Header h = read_header(parser);
    at::Tensor ids = at::empty({h.T, h.K}, narrow_type(h.experts));
    parser.bytes(ids.mutable_data_ptr(), static_cast<int64_t>(ids.nbytes()));
    check_choices(ids.to(at::kInt), h.experts, parser);
    out.record(h.layer, h.microbatch, ids, h.experts);
  }
  return out;
}

}  // namespace troupe
