// The text of one file of a corpus from its beginning to its end: as it stands, unpacked (gzip,
// Zstandard), or the rows of a table as JSONL, {"KEY": VALUE} a line (CSV, TSV, a JSON array,
// Parquet, Arrow). Memory does not grow with the file.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "troupe/core/text/text.h"

namespace troupe {

class TextStream {
 public:
  virtual ~TextStream() = default;
  // Fills `out`; fewer bytes only where the text ends. Throws E3001 or E3106 with the file's name.
  virtual size_t read(std::span<char> out) = 0;
  // Reads on without keeping anything.
  virtual void skip(int64_t bytes);
  // How many bytes of the file are behind the first `bytes` of its text: exact for plain text, else
  // what was read of the file so far.
  virtual int64_t consumed(int64_t bytes) const = 0;
  // Throws if the file has changed since it was opened.
  virtual void require_unchanged() const = 0;
};

// What a file is, by its name and how it begins.
struct TextShape {
  enum class Packing { kNone, kGzip, kZstd };
  enum class Rows { kNone, kJson, kCsv, kTsv, kTable };
  Packing packing = Packing::kNone;
  Rows rows = Rows::kNone;  // kJson: .jsonl, .json; kTable: Parquet, Arrow
};

// The name decides about rows, without the end that names a packing (notes.csv.gz), and the first
// bytes about packing and tables.
TextShape text_shape(const std::string& path);

// The text of a file of that shape. Rows are lines of JSON, of tables with the column `key` alone, or
// with all where it is empty; an array of JSON is a line an item. E3001 where a table cannot be read: no pyarrow, no such column.
std::unique_ptr<TextStream> open_text(const std::string& path, const TextShape& shape,
                                      const std::string& key = {});

}  // namespace troupe
