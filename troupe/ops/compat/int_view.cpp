#include "troupe/ops/compat/int_view.h"

#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

IntDtype int_dtype_of_tensor(const at::Tensor& x, const char* name) {
  switch (x.scalar_type()) {
    case at::kShort: return IntDtype::kI16;
    case at::kInt: return IntDtype::kI32;
    case at::kLong: return IntDtype::kI64;
    default: TROUPE_CHECK(false, name, "must be int16, int32 or int64; it is", x.scalar_type());
  }
  return IntDtype::kI64;
}

void check(const at::Tensor& x, const char* name) {
  TROUPE_CHECK(x.defined() && (x.dim() == 1 || x.dim() == 2) && x.is_contiguous(), name,
               "must be a contiguous tensor of one or two dimensions; it has sizes", x.sym_sizes(),
               "strides", x.sym_strides());
}

int64_t rows(const at::Tensor& x) {
  return x.dim() == 2 ? x.size(0) : 1;
}

}  // namespace

IntRef int_view(const at::Tensor& x, const char* name) {
  check(x, name);
  return {x.const_data_ptr(), int_dtype_of_tensor(x, name), rows(x), x.size(-1)};
}

IntMut mut_int_view(const at::Tensor& x, const char* name) {
  check(x, name);
  return {x.mutable_data_ptr(), int_dtype_of_tensor(x, name), rows(x), x.size(-1)};
}

}  // namespace troupe
