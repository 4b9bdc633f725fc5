#include "troupe/data/text/row_streams.h"

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"

namespace troupe {
namespace {

using namespace std::string_view_literals;

constexpr int64_t kLongestRow = int64_t{1} << 30;

// A string of JSON. Bytes that are no UTF-8 stay: the caller counts documents that have some.
void append_json(std::string_view text, std::string& out) {
  constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < ' ') {
      out += {'\\', 'u', '0', '0', kHex[byte >> 4], kHex[byte & 15]};
      continue;
    }
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  out += '"';
}

// Characters of a text, a block at a time, without the byte order mark at its beginning.
class Characters {
 public:
  explicit Characters(std::unique_ptr<TextStream> text)
      : text_(std::move(text)), block_(size_t{64} << 10, '\0') {}

  bool ended() { return at_ == have_ && !refill(); }
  char peek() const { return block_[at_]; }
  char take() { return block_[at_++]; }
  const TextStream& text() const { return *text_; }

 private:
  bool refill() {
    const bool first = have_ == 0;
    at_ = 0;
    have_ = text_->read(block_);
    if (first) at_ = have_ - without_byte_order_mark({block_.data(), have_}).size();
    return at_ < have_;
  }

  std::unique_ptr<TextStream> text_;
  std::string block_;
  size_t at_ = 0, have_ = 0;
};

// A stream that is made a line at a time.
class RowStream : public TextStream {
 public:
  RowStream(std::string path, std::unique_ptr<TextStream> text)
      : in_(std::move(text)), path_(std::move(path)) {}

  size_t read(std::span<char> out) final {
    size_t filled = 0;
    while (filled < out.size()) {
      if (used_ == line_.size()) {
        used_ = 0;
        line_.clear();
        if (!next_line(line_)) break;
      }
      const size_t count = std::min(out.size() - filled, line_.size() - used_);
      std::copy_n(line_.data() + used_, count, out.data() + filled);
      used_ += count;
      filled += count;
    }
    return filled;
  }
  int64_t consumed(int64_t bytes) const final { return in_.text().consumed(bytes); }
  void require_unchanged() const final { in_.text().require_unchanged(); }

 protected:
  // Appends a line with its end to `out`; false where there is none.
  virtual bool next_line(std::string& out) = 0;

  [[noreturn]] void fault(int64_t row, const std::string& what) const {
    fail(Code::kUnreadableData, path_ + ": row " + std::to_string(row), what);
  }
  void require_room(const std::string& text, int64_t row) const {
    if (std::ssize(text) > kLongestRow) fault(row, "is longer than 1 GiB");
  }

  Characters in_;

 private:
  std::string path_, line_;
  size_t used_ = 0;
};

class CsvRows final : public RowStream {
 public:
  CsvRows(const std::string& path, std::unique_ptr<TextStream> text, char separator,
          const std::string& key)
      : RowStream(path, std::move(text)), separator_(separator) {
    const std::vector<std::string> names = read_row().value_or(std::vector<std::string>());
    std::string list;
    bool found = key.empty();
    for (const std::string& name : names) {
      list += (list.empty() ? "" : ", ") + name;
      Column& column = columns_.emplace_back();
      column.is_read = key.empty() || name == key;
      append_json(name, column.name);
      found |= column.is_read;
    }
    if (found) return;
    fail(Code::kUnreadableData, path, "has no column", key, "; its columns are", list,
         "; --key names the one to read");
  }

 private:
  struct Column {
    std::string name;  // as JSON
    bool is_read = false;
  };

  bool next_line(std::string& out) override {
    while (std::optional<std::vector<std::string>> row = read_row()) {
      if (row->size() == 1 && row->front().empty()) continue;  // an empty line
      if (row->size() == columns_.size()) {
        append_row(*row, out);
      } else {
        out = "the row has " + std::to_string(row->size()) + " fields for " +
              std::to_string(columns_.size()) + " columns\n";
      }
      return true;
    }
    return false;
  }

  void append_row(const std::vector<std::string>& row, std::string& out) const {
    out = "{";
    for (size_t i = 0; i < row.size(); ++i) {
      if (!columns_[i].is_read) continue;
      if (out.size() > 1) out += ", ";
      out += columns_[i].name + ": ";
      append_json(row[i], out);
    }
    out += "}\n";
  }

  // The fields of the next row; nothing at the end.
  std::optional<std::vector<std::string>> read_row() {
    if (in_.ended()) return std::nullopt;
    ++row_;
    std::vector<std::string> out(1);
    while (!in_.ended()) {
      const char c = in_.take();
      if (c == '"' && out.back().empty()) {
        read_quoted(out.back());
      } else if (c == separator_) {
        out.emplace_back();
      } else if (c == '\n') {
        break;
      } else if (c != '\r' || (!in_.ended() && in_.peek() != '\n')) {
        out.back() += c;
        require_room(out.back(), row_);
      }
    }
    return out;
  }

  // Behind the quote, up to the one that closes it.
  void read_quoted(std::string& out) {
    while (!in_.ended()) {
      const char c = in_.take();
      if (c == '"') {
        if (in_.ended() || in_.peek() != '"') return;
        in_.take();
      }
      out += c;
      require_room(out, row_);
    }
    fault(row_, "ends within quotes: a \" is missing there, or in a row before it");
  }

  char separator_;
  std::vector<Column> columns_;
  int64_t row_ = 0;
};

class ArrayRows final : public RowStream {
 public:
  using RowStream::RowStream;

 private:
  bool next_line(std::string& out) override {
    if (!begun_) {
      skip_space();
      in_.take();  // the [ by which the caller knows it
      begun_ = true;
    }
    skip_space();
    if (closed_) {
      if (!in_.ended()) fault(row_, "is followed by more than the end of the array");
      return false;
    }
    ++row_;
    if (in_.ended()) fault(row_, "is missing: the array is cut off");
    if (in_.peek() == ']' && row_ == 1) return closed_ = true, in_.take(), next_line(out);
    read_item(out);
    out += '\n';
    return true;
  }

  // Up to the comma or bracket behind the item, which it takes.
  void read_item(std::string& out) {
    int depth = 0;
    for (bool quoted = false, escaped = false; !in_.ended();) {
      const char c = in_.take();
      if (!quoted && depth == 0 && (c == ',' || c == ']')) return closed_ = c == ']', void();
      if (quoted) {
        quoted = escaped || c != '"';
        escaped = !escaped && c == '\\';
      } else {
        quoted = c == '"';
        depth += (c == '{' || c == '[') - (c == '}' || c == ']');
      }
      out += !quoted && (c == '\n' || c == '\r') ? ' ' : c;
      require_room(out, row_);
    }
    fault(row_, "is cut off: the array does not end");
  }

  void skip_space() {
    while (!in_.ended() && " \t\r\n"sv.find(in_.peek()) != std::string_view::npos) in_.take();
  }

  int64_t row_ = 0;
  bool begun_ = false, closed_ = false;
};

}  // namespace

std::unique_ptr<TextStream> csv_rows(const std::string& path, std::unique_ptr<TextStream> text,
                                     char separator, const std::string& key) {
  return std::make_unique<CsvRows>(path, std::move(text), separator, key);
}

std::unique_ptr<TextStream> array_rows(const std::string& path, std::unique_ptr<TextStream> text) {
  return std::make_unique<ArrayRows>(path, std::move(text));
}

}  // namespace troupe
