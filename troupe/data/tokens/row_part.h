// The part of a batch's rows that one rank of several has (rules CX1, CX3): integers on the host.
// Everything that needs whole rows is made of them before they are cut: targets, documents,
// positions, and what multi-token prediction looks ahead to. Which tokens of a row are a rank's is
// the caller's choice (distributed/mesh/dealing.h).
//
//   rows = padded_rows(batch, more); documents = row_documents(rows)
//   part = part_of(rows, first, count, documents, tokens, depth)
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "troupe/data/tokens/dataset.h"

namespace troupe {

// Pads each row with `more` tokens, which belong to no document and do not count.
TokenBatch padded_rows(const TokenBatch& batch, int64_t more);

struct RowDocuments {
  // [B S], never falling along a row: tokens of one number see each other alone. Padding is one
  // more document, behind the row's last. Empty: each row is one document, without padding.
  std::vector<int32_t> numbers = {};
  bool padded = false;  // some token is padding
};
RowDocuments row_documents(const TokenBatch& batch);

// [B S], 0: padding.
std::vector<uint8_t> valid_tokens(const TokenBatch& batch);

// What a module of multi-token prediction reads at each token.
struct AheadPart {
  std::vector<int32_t> ids = {}, labels = {};  // [B, n]; label -100: does not count
  std::vector<float> weights = {};             // [B, n]
};

struct RowPart {
  int64_t B = 0, n = 0;                                        // rows, and tokens of each
  std::vector<int32_t> ids = {}, labels = {}, positions = {};  // [B, n]
  std::vector<float> weights = {};                             // [B, n] of the labels
  std::optional<std::vector<uint8_t>> valid = {};              // [B, n]; none: there is no padding
  std::vector<AheadPart> ahead = {};                           // module d = 1 .. depth: d tokens on
};

// Of rows first .. first + count of `whole`: the tokens at `tokens`, ascending places in a row.
// `documents` are row_documents(whole). Module d reads at place t of place t + d; where that is
// beyond the row, whose first tokens stand there then, or in another document, no label counts.
RowPart part_of(const TokenBatch& whole, int64_t first, int64_t count,
                const RowDocuments& documents, const std::vector<int64_t>& tokens, int64_t depth);

}  // namespace troupe
