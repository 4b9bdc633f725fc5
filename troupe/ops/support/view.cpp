#include "troupe/ops/support/view.h"

#include <ATen/ops/empty.h>

#include <sstream>
#include <type_traits>

namespace troupe {
namespace {

template <class T>
constexpr at::ScalarType scalar_type_of() {
  using U = std::remove_const_t<T>;
  if constexpr (std::is_same_v<U, float>) return at::kFloat;
  if constexpr (std::is_same_v<U, double>) return at::kDouble;
  if constexpr (std::is_same_v<U, int32_t>) return at::kInt;
  if constexpr (std::is_same_v<U, int64_t>) return at::kLong;
  if constexpr (std::is_same_v<U, uint8_t>) return at::kByte;
  if constexpr (std::is_same_v<U, bool>) return at::kBool;
}

void check_matrix(const at::Tensor& x, const char* name) {
  TROUPE_CHECK(x.defined() && x.dim() == 2, name, "must be a matrix; it is", tensor_text(x));
  if (x.numel() == 0) return;  // Whatever its strides: backward of sum() hands back zeros.
  const bool columns_packed = x.size(1) <= 1 || x.stride(1) == 1;
  const bool rows_apart = x.size(0) <= 1 || x.stride(0) >= x.size(1);
  TROUPE_CHECK(columns_packed && rows_apart, name,
               "must have contiguous columns and rows that do not overlap; it is", tensor_text(x));
}

int64_t row_stride(const at::Tensor& x) {
  return x.size(0) > 1 && x.numel() > 0 ? x.stride(0) : x.size(1);
}

}  // namespace

std::string tensor_text(const at::Tensor& x) {
  if (!x.defined()) return "an undefined tensor";
  std::ostringstream os;
  os << "a " << x.scalar_type() << " tensor of sizes " << x.sym_sizes() << ", strides "
     << x.sym_strides() << " on " << x.device();
  return os.str();
}

Dtype dtype_of_tensor(const at::Tensor& x, const char* name) {
  switch (x.scalar_type()) {
    case at::kFloat: return Dtype::kF32;
    case at::kBFloat16: return Dtype::kBF16;
    case at::kHalf: return Dtype::kF16;
    case at::kDouble: return Dtype::kF64;
    default: TROUPE_CHECK(false, name, "must be f32, bf16, f16 or f64; it is", tensor_text(x));
  }
  return Dtype::kF32;
}

at::ScalarType scalar_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::kBF16: return at::kBFloat16;
    case Dtype::kF16: return at::kHalf;
    case Dtype::kF64: return at::kDouble;
    case Dtype::kF32: break;
  }
  return at::kFloat;
}

at::ScalarType wide_type(const at::Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

at::Tensor int_ids(const at::Tensor& ids, int64_t experts) {
  return ids.scalar_type() == at::kLong ? ids.clamp(-1, experts).to(at::kInt) : ids;
}

at::Tensor rowwise(const at::Tensor& x) {
  if (x.dim() == 2 && (x.sym_size(1) <= 1 || x.sym_stride(1) == 1) &&
      (x.sym_size(0) <= 1 || x.sym_stride(0) >= x.sym_size(1))) {
    return x;
  }
  const c10::SymInt columns = x.dim() == 0 ? c10::SymInt(1) : x.sym_size(-1);
  const c10::SymInt rows = columns == 0 ? c10::SymInt(0) : x.sym_numel() / columns;
  return x.reshape_symint({rows, columns}).contiguous();
}

MatRef view(const at::Tensor& x, const char* name) {
  check_matrix(x, name);
  return {x.const_data_ptr(), dtype_of_tensor(x, name), x.size(0), x.size(1), row_stride(x)};
}

MatRef column(const std::optional<at::Tensor>& x, const char* name) {
  return x.has_value() ? view(x->unsqueeze(1), name) : MatRef{};
}

MutRef mut_view(const at::Tensor& x, const char* name) {
  check_matrix(x, name);
  return {x.mutable_data_ptr(), dtype_of_tensor(x, name), x.size(0), x.size(1), row_stride(x)};
}

template <class T>
Mat<T> mat(const at::Tensor& x, const char* name) {
  check_matrix(x, name);
  check_dtype(x, scalar_type_of<T>(), name);
  return {static_cast<T*>(x.data_ptr()), x.size(0), x.size(1), row_stride(x)};
}

template <class T>
T* ptr(const at::Tensor& x, const char* name) {
  TROUPE_CHECK(x.defined() && x.is_contiguous(), name, "must be contiguous; it is", tensor_text(x));
  // A mask may be bool or its bytes.
  const bool byte_for_bool = scalar_type_of<T>() == at::kByte && x.scalar_type() == at::kBool;
  if (!byte_for_bool) check_dtype(x, scalar_type_of<T>(), name);
  return static_cast<T*>(x.data_ptr());
}

#define TROUPE_INSTANTIATE(T)                                         \
  template Mat<T> mat<T>(const at::Tensor&, const char*);             \
  template T* ptr<T>(const at::Tensor&, const char*);                 \
  template Mat<const T> mat<const T>(const at::Tensor&, const char*); \
  template const T* ptr<const T>(const at::Tensor&, const char*);
TROUPE_INSTANTIATE(float)
TROUPE_INSTANTIATE(double)
TROUPE_INSTANTIATE(int32_t)
TROUPE_INSTANTIATE(int64_t)
TROUPE_INSTANTIATE(uint8_t)
#undef TROUPE_INSTANTIATE

void check_sizes(const at::Tensor& x, std::initializer_list<c10::SymInt> sizes, const char* name) {
  const c10::SymIntArrayRef want(sizes.begin(), sizes.size());
  bool fits = x.defined() && x.dim() == static_cast<int64_t>(sizes.size());
  for (size_t i = 0; fits && i < sizes.size(); ++i) {
    if (want[i].maybe_as_int() == -1) continue;
    const c10::SymBool same = x.sym_size(static_cast<int64_t>(i)).sym_eq(want[i]);
    fits = same.expect_true(__FILE__, __LINE__);
  }
  TROUPE_CHECK(fits, name, "must have sizes", want, "(-1: any); it is", tensor_text(x));
}

void check_same_device(const at::Tensor& x, const at::Tensor& other, const char* name) {
  TROUPE_CHECK(x.device() == other.device(), name, "must be on", other.device(), "; it is",
               tensor_text(x));
}

void check_dtype(const at::Tensor& x, at::ScalarType dtype, const char* name) {
  TROUPE_CHECK(x.scalar_type() == dtype, name, "must be of type", dtype, "; it is", tensor_text(x));
}

}  // namespace troupe
