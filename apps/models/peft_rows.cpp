#include "apps/models/peft_rows.h"

#include "troupe/core/check.h"

namespace troupe {

void refuse_piece(const HfPiece& piece, const std::string& why, const char* instead) {
  fail(Code::kBadValue, "--adapter", piece.name, why, ";", instead);
}

PieceRows rows_of(const HfPiece& p, int64_t columns, const char* instead) {
  PieceRows out;
  const bool stacked = p.shape.size() == 3;
  if (!stacked && p.shape.size() != 2) {
    refuse_piece(p, "is no matrix, and has no adapter in PEFT", instead);
  }
  const int64_t rows = p.shape[p.shape.size() - 2], across = p.shape.back();
  out.experts = stacked ? p.shape[0] : 1;
  out.expert = p.offset / (rows * across);
  const int64_t rest = p.offset % (rows * across);
  out.in_first = stacked && p.column_stride == across && columns == rows;
  if (out.in_first) {
    out.out = across, out.in = rows, out.first = rest, out.step = p.row_stride;
    return out;
  }
  if (p.column_stride != 1 || columns != across || rest % across != 0 ||
      p.row_stride % across != 0) {
    refuse_piece(p, "is kept transposed, for which PEFT has another form", instead);
  }
  out.out = rows, out.in = across, out.first = rest / across, out.step = p.row_stride / across;
  return out;
}

bool is_parameter(const HfPiece& piece, const HfTensor& ours) {
  return piece.shape.size() == 3 || ours.name.ends_with("moe.router.weight");
}

ParameterPlace split_name(const std::string& theirs) {
  const size_t dot = theirs.rfind('.');
  return {theirs.substr(0, dot), theirs.substr(dot + 1)};
}

}  // namespace troupe
