#include "troupe/data/text/text_stream.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "troupe/core/file/file.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/files/retry.h"
#include "troupe/data/text/row_streams.h"
#include "troupe/data/text/table_stream.h"
#include "troupe/data/text/unpacked_stream.h"

namespace troupe {
namespace {

using namespace std::string_view_literals;
using Packing = TextShape::Packing;
using Rows = TextShape::Rows;

class PlainStream final : public TextStream {
 public:
  explicit PlainStream(const std::string& path) : file_(path) {}

  size_t read(std::span<char> out) override {
    const int64_t left = file_.size() - at_;
    const std::span<char> part = out.first(std::min(out.size(), static_cast<size_t>(left)));
    read_steadily(file_, at_, std::as_writable_bytes(part));
    at_ += std::ssize(part);
    return part.size();
  }
  void skip(int64_t bytes) override { at_ = std::min(file_.size(), at_ + bytes); }
  int64_t consumed(int64_t bytes) const override { return bytes; }
  void require_unchanged() const override { file_.require_unchanged(Code::kDataChanged); }

 private:
  InputFile file_;
  int64_t at_ = 0;
};

std::string head_of(const std::string& path) {
  const InputFile file(path);
  constexpr int64_t kBytes = 8;
  std::string head(static_cast<size_t>(std::min(file.size(), kBytes)), '\0');
  read_steadily(file, 0, std::as_writable_bytes(std::span(head)));
  return head;
}

std::unique_ptr<TextStream> open_unpacked(const std::string& path, Packing packing) {
  switch (packing) {
    case Packing::kNone: break;
    case Packing::kGzip: return unpack_gzip(path);
    case Packing::kZstd: return unpack_zstd(path);
  }
  return std::make_unique<PlainStream>(path);
}

bool begins_with_array(const std::string& path, Packing packing) {
  const auto stream = open_unpacked(path, packing);
  std::array<char, 64> block;  // NOLINT(cppcoreguidelines-pro-type-member-init): read() fills it
  while (const size_t count = stream->read(block)) {
    const std::string_view head = without_byte_order_mark({block.data(), count});
    const size_t at = head.find_first_not_of(" \t\r\n");
    if (at != std::string_view::npos) return head[at] == '[';
  }
  return false;
}

}  // namespace

void TextStream::skip(int64_t bytes) {
  std::string block(size_t{1} << 16, '\0');
  while (bytes > 0) {
    const auto wanted = static_cast<size_t>(std::min(bytes, std::ssize(block)));
    const size_t count = read(std::span(block).first(wanted));
    if (count == 0) return;
    bytes -= static_cast<int64_t>(count);
  }
}

TextShape text_shape(const std::string& path) {
  const std::string head = head_of(path);
  TextShape out;
  std::string_view name = path;
  const auto drop = [&](std::string_view end) {
    if (name.ends_with(end)) name.remove_suffix(end.size());
  };
  if (head.starts_with("\x1F\x8B"sv)) {
    out.packing = Packing::kGzip;
    drop(".gz"sv);
  } else if (head.starts_with("\x28\xB5\x2F\xFD"sv)) {
    out.packing = Packing::kZstd;
    drop(".zst"sv);
  }
  const bool is_parquet = head.starts_with("PAR1"sv) && name.ends_with(".parquet"sv);
  const bool is_arrow = name.ends_with(".arrow"sv) &&
                        (head.starts_with("ARROW1\0"sv) || head.starts_with("\xFF\xFF\xFF\xFF"sv));
  if (is_parquet || is_arrow) {
    out.rows = Rows::kTable;
  } else if (name.ends_with(".jsonl"sv) || name.ends_with(".json"sv)) {
    out.rows = Rows::kJson;
  } else if (name.ends_with(".csv"sv)) {
    out.rows = Rows::kCsv;
  } else if (name.ends_with(".tsv"sv)) {
    out.rows = Rows::kTsv;
  }
  return out;
}

std::unique_ptr<TextStream> open_text(const std::string& path, const TextShape& shape,
                                      const std::string& key) {
  if (shape.rows == Rows::kTable) return table_rows(path, key);
  auto text = open_unpacked(path, shape.packing);
  switch (shape.rows) {
    case Rows::kCsv: return csv_rows(path, std::move(text), ',', key);
    case Rows::kTsv: return csv_rows(path, std::move(text), '\t', key);
    case Rows::kJson:
      if (begins_with_array(path, shape.packing)) return array_rows(path, std::move(text));
      break;
    case Rows::kNone:
    case Rows::kTable: break;
  }
  return text;
}

}  // namespace troupe
