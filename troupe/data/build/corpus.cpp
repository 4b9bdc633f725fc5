#include "troupe/data/build/corpus.h"

#include <glob.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <memory>
#include <utility>

#include "troupe/core/file/file.h"
#include "troupe/data/files/retry.h"
#include "troupe/data/text/text_check.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

bool is_link(const std::string& path) {
  std::error_code unknown;
  return stdfs::is_symlink(path, unknown);
}

// Links to files count, links to folders do not: they may lead in a circle.
void add_below(const std::string& folder, int depth, std::vector<std::string>& out) {
  if (depth == 0) fail(Code::kUnreadableData, folder, "is too many folders deep");
  for (const std::string& name : names_in(folder)) {
    if (name.starts_with('.')) continue;
    const std::string path = (stdfs::path(folder) / name).string();
    switch (file_kind(path)) {
      case FileKind::kFile: out.push_back(path); break;
      case FileKind::kFolder:
        if (!is_link(path)) add_below(path, depth - 1, out);
        break;
      default: break;
    }
  }
}

// What datasets and the hub write beside tables.
bool is_beside_tables(const std::string& path) {
  constexpr std::array kNames{"README.md",         "LICENSE",    "LICENSE.txt",
                              "dataset_info.json", "state.json", "dataset_infos.json"};
  const std::string name = stdfs::path(path).filename().string();
  return std::ranges::find(kNames, name) != kNames.end();
}

void add_folder(const std::string& folder, std::vector<std::string>& out) {
  constexpr int kDeepest = 256;
  std::vector<std::string> found;
  if (is_there((stdfs::path(folder) / "dataset_dict.json").string())) {
    fail(Code::kUnreadableData, folder,
         "is a data set with several splits, a folder each: name the one to read, as", folder,
         "/train");
  }
  add_below(folder, kDeepest, found);
  std::sort(found.begin(), found.end());
  const auto is_table = [](const std::string& path) {
    return path.ends_with(".parquet") || path.ends_with(".arrow");
  };
  if (std::ranges::any_of(found, is_table)) std::erase_if(found, is_beside_tables);
  out.insert(out.end(), found.begin(), found.end());
}

void add_pattern(const std::string& pattern, std::vector<std::string>& out) {
  glob_t found{};
  const std::unique_ptr<glob_t, void (*)(glob_t*)> guard(&found, ::globfree);
  const int status = ::glob(pattern.c_str(), 0, nullptr, &found);
  if (status != 0) fail(Code::kUnreadableData, pattern, "matches no file");
  for (size_t i = 0; i < found.gl_pathc; ++i) {
    if (file_kind(found.gl_pathv[i]) == FileKind::kFile) out.emplace_back(found.gl_pathv[i]);
  }
}

std::string why_not_corpus(const std::string& path) {
  for (const char* suffix : {".bz2", ".xz", ".zip", ".lz4", ".7z"}) {
    if (path.ends_with(suffix)) return "is compressed; unpack it first";
  }
  const TextShape shape = text_shape(path);
  const bool named_packed = path.ends_with(".gz") || path.ends_with(".zst");
  if (named_packed && shape.packing == TextShape::Packing::kNone) {
    return "is named as compressed and does not begin so: it is damaged, or has a wrong name";
  }
  if (shape.rows == TextShape::Rows::kTable) return {};  // whoever reads it says what is wrong
  std::string head(kCheckedBytes, '\0');
  try {
    head.resize(open_text(path, {.packing = shape.packing})->read(head));
  } catch (const Error& error) {  // packed, and damaged
    const std::string what = error.what(), place = to_text(error.code());
    const size_t at = what.find(place);
    if (at == std::string::npos) throw;
    return what.substr(at + place.size() + 1);
  }
  return why_not_text(head);
}

void require_text(const std::vector<std::string>& files) {
  constexpr int64_t kMostLines = 1000;
  std::string lines;
  int64_t count = 0;
  for (const std::string& path : files) {
    const std::string why = why_not_corpus(path);
    if (why.empty() || ++count > kMostLines) continue;
    lines += (lines.empty() ? "" : "\n") + path + ": " + to_text(Code::kUnreadableData) + ' ' + why;
  }
  if (count > kMostLines) lines += "\nand " + std::to_string(count - kMostLines) + " more";
  if (count > 0) throw Error(lines, Code::kUnreadableData);
}

}  // namespace

std::vector<std::string> corpus_files(const std::vector<std::string>& names) {
  std::vector<std::string> out;
  for (const std::string& name : names) {
    const size_t before = out.size();
    const bool pattern = name.find_first_of("*?[") != std::string::npos;
    const FileKind kind = pattern && !is_there(name) ? FileKind::kNothing : file_kind(name);
    if (kind == FileKind::kFolder) {
      add_folder(name, out);
    } else if (kind != FileKind::kNothing) {
      out.push_back(name);
    } else if (pattern) {
      add_pattern(name, out);
    } else {
      fail(Code::kUnreadableData, name, "is not there");
    }
    if (out.size() == before) fail(Code::kUnreadableData, name, "holds no file");
  }
  require_text(out);
  return out;
}

CorpusReader::CorpusReader(std::vector<std::string> files, Limits limits, CorpusPlace from)
    : files_(std::move(files)), limits_(std::move(limits)), at_(from) {
  for (const std::string& path : files_) {
    sizes_.push_back(InputFile(path).size());
    total_bytes_ += sizes_.back();
  }
}

int64_t CorpusReader::bytes_before(const CorpusPlace& place) const {
  int64_t sum = place.read;
  for (int64_t i = 0; i < place.file; ++i) sum += sizes_[static_cast<size_t>(i)];
  return sum;
}

// The file at `at_`, from there on.
void CorpusReader::open() {
  const std::string& path = files_[static_cast<size_t>(at_.file)];
  using Rows = TextShape::Rows;
  TextShape shape = text_shape(path);
  format_ = limits_.format;
  if (format_ == CorpusFormat::kAuto) {
    format_ = shape.rows == Rows::kNone ? CorpusFormat::kText : CorpusFormat::kJsonl;
  }
  const bool rows = format_ == CorpusFormat::kJsonl || format_ == CorpusFormat::kChat;
  if (shape.rows == Rows::kTable && !rows) {
    fail(Code::kBadValue, path, "is a table, whose rows are documents with `format: jsonl` or",
         "`format: chat`");
  }
  if (!rows) {
    shape.rows = Rows::kNone;
  } else if (shape.rows == Rows::kNone) {
    shape.rows = Rows::kJson;  // whatever its name
  }
  is_table_ = rows && shape.rows != Rows::kJson;
  text_ = open_text(path, shape, limits_.key);
  text_->skip(at_.offset);
}

std::optional<CorpusPiece> CorpusReader::next() {
  while (at_.file < std::ssize(files_)) {
    if (!text_) open();
    CorpusPiece piece = format_ == CorpusFormat::kText ? whole_file() : lines();
    if (!piece.text.empty() || piece.long_line) {
      at_.read = text_->consumed(at_.offset);
      piece.next = at_;
      return piece;
    }
    text_->require_unchanged();
    text_.reset();
    at_ = {.file = at_.file + 1};
  }
  return std::nullopt;
}

// How many bytes the text had left, up to `bytes`.
size_t CorpusReader::append(std::string& text, int64_t bytes) {
  const size_t had = text.size();
  text.resize(had + static_cast<size_t>(bytes));
  const size_t count = text_->read(std::span(text).subspan(had));
  text.resize(had + count);
  return count;
}

CorpusPiece CorpusReader::whole_file() {
  CorpusPiece out{.path = files_[static_cast<size_t>(at_.file)], .is_first = true};
  for (int64_t wanted = limits_.piece; append(out.text, wanted) == static_cast<size_t>(wanted) &&
                                       std::ssize(out.text) <= limits_.longest;
       wanted = std::min(wanted * 2, limits_.longest)) {
  }
  if (std::ssize(out.text) > limits_.longest) {
    fail(Code::kBadDocument, out.path, "has more bytes than a document may,", limits_.longest,
         "; with `format: lines` each line is one");
  }
  at_.offset += std::ssize(out.text);
  return out;
}

CorpusPiece CorpusReader::lines() {
  CorpusPiece out{.path = files_[static_cast<size_t>(at_.file)],
                  .format = format_,
                  .text = std::exchange(read_ahead_, {}),
                  .first_line = at_.line,
                  .is_table = is_table_,
                  .is_first = at_.offset == 0};
  std::string& text = out.text;
  for (int64_t wanted = limits_.piece;; wanted *= 2) {
    const int64_t missing = std::max<int64_t>(0, wanted - std::ssize(text));
    const bool ended = append(text, missing) < static_cast<size_t>(missing);
    const size_t end = text.rfind('\n');
    if (end != std::string::npos) {
      read_ahead_ = text.substr(end + 1);
      text.resize(end + 1);
    } else if (!ended) {
      if (std::ssize(text) <= limits_.longest) continue;
      skip_line(out);
      return out;
    }
    at_.offset += std::ssize(text);
    at_.line += std::ranges::count(text, '\n');
    return out;
  }
}

// Past a line that is too long, of which `piece` has the beginning, without keeping it.
void CorpusReader::skip_line(CorpusPiece& piece) {
  int64_t bytes = std::ssize(piece.text);
  std::string block;
  while (true) {
    block.clear();
    if (append(block, limits_.piece) == 0) break;
    const size_t end = block.find('\n');
    bytes += end == std::string::npos ? std::ssize(block) : static_cast<int64_t>(end) + 1;
    if (end == std::string::npos) continue;
    read_ahead_ = block.substr(end + 1);
    break;
  }
  at_.offset += bytes;
  ++at_.line;
  piece.long_line = bytes;
  piece.text.clear();
}

}  // namespace troupe
