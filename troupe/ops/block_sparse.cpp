#include "troupe/ops/block_sparse.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/searchsorted.h>
#include <ATen/ops/sort.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <utility>

#include "troupe/kernels/block_sparse/block_sparse.h"
#include "troupe/ops/support/autograd.h"
#include "troupe/ops/support/define.h"
#include "troupe/ops/support/index_check.h"
#include "troupe/ops/support/run.h"
#include "troupe/ops/support/view.h"

namespace troupe {
namespace {

// The index tensors of a structure, as PyTorch's dispatcher passes them.
std::vector<at::Tensor> indices_of(const BlockStructure& s) {
  return {s.row_offsets, s.col_indices, s.col_offsets, s.row_indices, s.block_order};
}

// A structure as the operators' arguments give it.
struct StructureArgs {
  at::TensorList indices;
  c10::SymInt rows, cols;
  int64_t block;
  bool transposed;

  static auto visit(auto& a, auto&& f) {
    return f(arg("indices", a.indices), arg("rows", a.rows), arg("cols", a.cols),
             arg("block", a.block), arg("transposed", a.transposed));
  }

  BlockStructure structure() const {
    TROUPE_CHECK(indices.size() == 5,
                 "block_sparse: indices must be [row_offsets, col_indices, "
                 "col_offsets, row_indices, block_order]; it has",
                 indices.size(), "tensors");
    return {rows,       cols,       block,      indices[0], indices[1],
            indices[2], indices[3], indices[4], transposed};
  }
};

// `indices` live as long as the arguments.
StructureArgs structure_args(const BlockStructure& s, at::TensorList indices) {
  return {indices, s.rows, s.cols, s.block, s.transposed};
}

struct SddArgs {
  const at::Tensor& a;
  const at::Tensor& b;
  StructureArgs to;

  static constexpr const char *kName = "block_sdd", *kResults = "Tensor";
  static auto visit(auto& all, auto&& f) {
    return f(arg("a", all.a), arg("b", all.b), group(all.to));
  }
};

struct DsdArgs {
  const at::Tensor& values;
  StructureArgs of;
  const at::Tensor& b;

  static constexpr const char *kName = "block_dsd", *kResults = "Tensor";
  static auto visit(auto& all, auto&& f) {
    return f(arg("values", all.values), group(all.of), arg("b", all.b));
  }
};

struct DdsArgs {
  const at::Tensor& a;
  const at::Tensor& values;
  StructureArgs of;

  static constexpr const char *kName = "block_dds", *kResults = "Tensor";
  static auto visit(auto& all, auto&& f) {
    return f(arg("a", all.a), arg("values", all.values), group(all.of));
  }
};

void check_structure(const BlockStructure& s, const at::Tensor& beside) {
  TROUPE_CHECK(s.block > 0 && s.rows % s.block == 0 && s.cols % s.block == 0,
               "block_sparse: structure of", s.rows, "x", s.cols, "in blocks of", s.block);
  const c10::SymInt blocks = s.col_indices.sym_numel();
  check_sizes(s.row_offsets, {s.rows / s.block + 1}, "block_sparse: row_offsets");
  check_sizes(s.col_indices, {blocks}, "block_sparse: col_indices");
  check_sizes(s.col_offsets, {s.cols / s.block + 1}, "block_sparse: col_offsets");
  check_sizes(s.row_indices, {blocks}, "block_sparse: row_indices");
  check_sizes(s.block_order, {blocks}, "block_sparse: block_order");
  check_same_device(s.row_offsets, beside, "block_sparse: row_offsets");
  check_same_device(s.col_indices, beside, "block_sparse: col_indices");
  check_same_device(s.col_offsets, beside, "block_sparse: col_offsets");
  check_same_device(s.row_indices, beside, "block_sparse: row_indices");
  check_same_device(s.block_order, beside, "block_sparse: block_order");
}

BlockTopology topology_view(const BlockStructure& s) {
  const int64_t blocks = s.col_indices.numel(), rows = s.row_offsets.numel() - 1,
                columns = s.col_offsets.numel() - 1;
  const auto rising = [&](const char* name, const at::Tensor& t) {
    return Indices{.name = name, .values = t, .low = 0, .high = blocks, .rising = true};
  };
  const auto within = [](const char* name, const at::Tensor& t, int64_t size,
                         const at::Tensor& offsets) {
    return Indices{.name = name, .values = t, .low = 0, .high = size - 1, .used = &offsets};
  };
  check_indices({rising("block_sparse: row_offsets", s.row_offsets),
                 within("block_sparse: col_indices", s.col_indices, columns, s.row_offsets),
                 rising("block_sparse: col_offsets", s.col_offsets),
                 within("block_sparse: row_indices", s.row_indices, rows, s.col_offsets),
                 within("block_sparse: block_order", s.block_order, blocks, s.col_offsets)});
  return {.rows = s.rows.guard_int(__FILE__, __LINE__),
          .cols = s.cols.guard_int(__FILE__, __LINE__),
          .blocks = s.col_indices.numel(),
          .block = s.block,
          .row_offsets = ptr<const int32_t>(s.row_offsets, "block_sparse: row_offsets"),
          .col_indices = ptr<const int32_t>(s.col_indices, "block_sparse: col_indices"),
          .col_offsets = ptr<const int32_t>(s.col_offsets, "block_sparse: col_offsets"),
          .row_indices = ptr<const int32_t>(s.row_indices, "block_sparse: row_indices"),
          .block_order = ptr<const int32_t>(s.block_order, "block_sparse: block_order")};
}

c10::SymInt op_rows(const BlockStructure& s) {
  return s.transposed ? s.cols : s.rows;
}
c10::SymInt op_cols(const BlockStructure& s) {
  return s.transposed ? s.rows : s.cols;
}

// A dense operand as it is stored: rows contiguous, or columns, or copied.
struct Dense {
  explicit Dense(const at::Tensor& x) {
    transposed = x.size(1) > 1 && x.stride(1) != 1 && x.stride(0) == 1;
    stored = rowwise(transposed ? x.t() : x);
  }
  DenseOperand operand(const char* name) const { return {view(stored, name), transposed}; }

  at::Tensor stored;
  bool transposed;
};

// Values [blocks, B, B] as the matrix [blocks B, B].
at::Tensor flat_values(const at::Tensor& values) {
  return values.contiguous().view({values.size(0) * values.size(1), values.size(2)});
}

void check_operands(const at::Tensor& x, const at::Tensor& values, const BlockStructure& s) {
  check_structure(s, x);
  check_sizes(values, {s.col_indices.sym_numel(), s.block, s.block}, "block_sparse: values");
  check_dtype(values, x.scalar_type(), "block_sparse: values");
  check_same_device(values, x, "block_sparse: values");
}

at::Tensor sdd_meta(const SddArgs& in) {
  const at::Tensor &a = in.a, &b = in.b;
  const BlockStructure s = in.to.structure();
  TROUPE_CHECK(!s.transposed, "sdd: structure must not be transposed: it is what is computed");
  check_sizes(a, {s.rows, -1}, "sdd: a");
  check_sizes(b, {a.sym_size(1), s.cols}, "sdd: b");
  check_dtype(b, a.scalar_type(), "sdd: b");
  check_same_device(b, a, "sdd: b");
  check_structure(s, a);
  return at::zeros_symint({s.col_indices.sym_numel(), s.block, s.block}, a.options());
}

at::Tensor sdd_device(const SddArgs& in) {
  at::Tensor values = sdd_meta(in);
  const Dense left(in.a), right(in.b);
  const BlockSdd args{.a = left.operand("sdd: a"),
                      .b = right.operand("sdd: b"),
                      .topology = topology_view(in.to.structure()),
                      .c = mut_view(flat_values(values), "sdd: values")};
  run(in.a.device(), args, block_sdd_cpu, &CudaKernels::block_sdd);
  return values;
}

at::Tensor dsd_meta(const DsdArgs& in) {
  const BlockStructure s = in.of.structure();
  check_sizes(in.b, {op_cols(s), -1}, "dsd: b");
  check_operands(in.b, in.values, s);
  return at::empty_symint({op_rows(s), in.b.sym_size(1)}, in.b.options());
}

at::Tensor dsd_device(const DsdArgs& in) {
  at::Tensor c = dsd_meta(in);
  const BlockStructure s = in.of.structure();
  const at::Tensor stored = flat_values(in.values);
  const Dense right(in.b);
  const BlockDsd args{.a = view(stored, "dsd: values"),
                      .topology = topology_view(s),
                      .transpose_a = s.transposed,
                      .b = right.operand("dsd: b"),
                      .c = mut_view(c, "dsd: c")};
  run(in.b.device(), args, block_dsd_cpu, &CudaKernels::block_dsd);
  return c;
}

at::Tensor dds_meta(const DdsArgs& in) {
  const BlockStructure s = in.of.structure();
  check_sizes(in.a, {-1, op_rows(s)}, "dds: a");
  check_operands(in.a, in.values, s);
  return at::empty_symint({in.a.sym_size(0), op_cols(s)}, in.a.options());
}

at::Tensor dds_device(const DdsArgs& in) {
  at::Tensor c = dds_meta(in);
  const BlockStructure s = in.of.structure();
  const at::Tensor stored = flat_values(in.values);
  const Dense left(in.a);
  const BlockDds args{.a = left.operand("dds: a"),
                      .b = view(stored, "dds: values"),
                      .topology = topology_view(s),
                      .transpose_b = s.transposed,
                      .c = mut_view(c, "dds: c")};
  run(in.a.device(), args, block_dds_cpu, &CudaKernels::block_dds);
  return c;
}

at::Tensor raw_sdd(const at::Tensor& a, const at::Tensor& b, const BlockStructure& s) {
  static const auto op = raw_op<decltype(sdd_device)>();
  const std::vector<at::Tensor> indices = indices_of(s);
  return op({a, b, structure_args(s, indices)});
}
at::Tensor raw_dsd(const at::Tensor& values, const BlockStructure& s, const at::Tensor& b) {
  static const auto op = raw_op<decltype(dsd_device)>();
  const std::vector<at::Tensor> indices = indices_of(s);
  return op({values, structure_args(s, indices), b});
}
at::Tensor raw_dds(const at::Tensor& a, const at::Tensor& values, const BlockStructure& s) {
  static const auto op = raw_op<decltype(dds_device)>();
  const std::vector<at::Tensor> indices = indices_of(s);
  return op({a, values, structure_args(s, indices)});
}

// The gradient of S's values where op(S) takes part in a b^T: always of S as it is stored.
at::Tensor values_gradient(const at::Tensor& a, const at::Tensor& b_t, const BlockStructure& s) {
  if (!s.transposed) return raw_sdd(a, b_t, s);
  return raw_sdd(b_t.t(), a.t(), s.t());
}

at::Tensor sdd_with_grad(const at::Tensor& a, const at::Tensor& b, const BlockStructure& s) {
  at::Tensor values = raw_sdd(a, b, s);
  record({.name = "block_sdd",
          .inputs = {a, b},
          .outputs = {values},
          .saved = {a, b},
          .backward = [s](const Gradients& g) -> TensorList {
            TensorList out(2);
            if (g.needs[0]) out[0] = raw_dsd(g.outputs[0], s, g.saved[1].t());
            if (g.needs[1]) out[1] = raw_dds(g.saved[0].t(), g.outputs[0], s);
            return out;
          }});
  return values;
}

at::Tensor dsd_with_grad(const at::Tensor& values, const BlockStructure& s, const at::Tensor& b) {
  at::Tensor c = raw_dsd(values, s, b);
  record({.name = "block_dsd",
          .inputs = {values, b},
          .outputs = {c},
          .saved = {values, b},
          .backward = [s](const Gradients& g) -> TensorList {
            TensorList out(2);
            if (g.needs[0]) out[0] = values_gradient(g.outputs[0], g.saved[1].t(), s);
            if (g.needs[1]) out[1] = raw_dsd(g.saved[0], s.t(), g.outputs[0]);
            return out;
          }});
  return c;
}

at::Tensor dds_with_grad(const at::Tensor& a, const at::Tensor& values, const BlockStructure& s) {
  at::Tensor c = raw_dds(a, values, s);
  record({.name = "block_dds",
          .inputs = {a, values},
          .outputs = {c},
          .saved = {a, values},
          .backward = [s](const Gradients& g) -> TensorList {
            TensorList out(2);
            if (g.needs[0]) out[0] = raw_dds(g.outputs[0], g.saved[1], s.t());
            if (g.needs[1]) out[1] = values_gradient(g.saved[0].t(), g.outputs[0], s);
            return out;
          }});
  return c;
}

at::Tensor sdd_op(const SddArgs& in) {
  return sdd_with_grad(in.a, in.b, in.to.structure());
}
at::Tensor dsd_op(const DsdArgs& in) {
  return dsd_with_grad(in.values, in.of.structure(), in.b);
}
at::Tensor dds_op(const DdsArgs& in) {
  return dds_with_grad(in.a, in.values, in.of.structure());
}

}  // namespace

BlockStructure BlockStructure::t() const {
  BlockStructure other = *this;
  other.transposed = !transposed;
  return other;
}

BlockStructure block_structure(const at::Tensor& row_offsets, const at::Tensor& col_indices,
                               const BlockSize& size) {
  check_sizes(row_offsets, {size.rows / size.block + 1}, "block_structure: row_offsets");
  check_sizes(col_indices, {-1}, "block_structure: col_indices");
  check_dtype(row_offsets, at::kInt, "block_structure: row_offsets");
  check_dtype(col_indices, at::kInt, "block_structure: col_indices");
  check_same_device(col_indices, row_offsets, "block_structure: col_indices");
  const int64_t columns = size.cols / size.block;
  const at::Tensor block = at::arange(col_indices.size(0), col_indices.options());
  const at::Tensor row = at::searchsorted(row_offsets, block, /*out_int32=*/true, /*right=*/true);
  // Blocks that are not there go behind every column.
  const at::Tensor stored = block.lt(row_offsets[-1]);
  const at::Tensor key = at::where(stored, col_indices, col_indices.new_full({}, columns));
  const auto [sorted, order] = at::sort(key, std::optional<bool>(true), /*dim=*/0);
  const at::Tensor column = at::arange(columns + 1, col_indices.options());
  return {.rows = size.rows,
          .cols = size.cols,
          .block = size.block,
          .row_offsets = row_offsets.contiguous(),
          .col_indices = col_indices.contiguous(),
          .col_offsets = at::searchsorted(sorted, column, /*out_int32=*/true),
          .row_indices = row.sub(1).index_select(0, order),
          .block_order = order.to(at::kInt)};
}

BlockStructure block_diagonal(const at::Tensor& padded_bins, const BlockGrid& grid) {
  check_sizes(padded_bins, {-1}, "block_diagonal: padded_bins");
  TROUPE_CHECK(padded_bins.size(0) > 0, "block_diagonal: padded_bins is empty");
  const at::Tensor col_indices = topology(padded_bins, grid);
  const at::Tensor last = padded_bins[-1].floor_divide(grid.block);
  const at::Tensor row = at::arange(grid.rows + 1, padded_bins.options());
  return block_structure(row.minimum(last).mul(grid.columns), col_indices,
                         {.rows = grid.rows * grid.block,
                          .cols = padded_bins.size(0) * grid.columns * grid.block,
                          .block = grid.block});
}

at::Tensor sdd(const at::Tensor& a, const at::Tensor& b, const BlockStructure& s) {
  return sdd_with_grad(a, b, s);
}

at::Tensor dsd(const at::Tensor& values, const BlockStructure& s, const at::Tensor& b) {
  return dsd_with_grad(values, s, b);
}

at::Tensor dds(const at::Tensor& a, const at::Tensor& values, const BlockStructure& s) {
  return dds_with_grad(a, values, s);
}

TORCH_LIBRARY_FRAGMENT(troupe, m) {
  define<sdd_device, sdd_meta, sdd_op>(m);
  define<dsd_device, dsd_meta, dsd_op>(m);
  define<dds_device, dds_meta, dds_op>(m);
}

}  // namespace troupe
