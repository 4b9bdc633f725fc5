#include "troupe/data/build/corpus.h"

#include <glob.h>

#include <algorithm>
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

void add_folder(const std::string& folder, std::vector<std::string>& out) {
  constexpr int kDeepest = 256;
  const size_t begin = out.size();
  add_below(folder, kDeepest, out);
  std::sort(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end());
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
  for (const char* suffix : {".gz", ".zst", ".bz2", ".xz", ".zip"}) {
    if (path.ends_with(suffix)) return "is compressed; unpack it first";
  }
  const InputFile file(path);
  std::string head(std::min(static_cast<size_t>(file.size()), kCheckedBytes), '\0');
  read_steadily(file, 0, std::as_writable_bytes(std::span(head)));
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
    : files_(std::move(files)), limits_(limits), at_(from) {
  for (const std::string& path : files_) {
    sizes_.push_back(InputFile(path).size());
    total_bytes_ += sizes_.back();
  }
}

int64_t CorpusReader::bytes_before(const CorpusPlace& place) const {
  int64_t sum = place.offset;
  for (int64_t i = 0; i < place.file; ++i) sum += sizes_[static_cast<size_t>(i)];
  return sum;
}

// The file at `at_`, or the next one that is not read to its end.
bool CorpusReader::open_next() {
  while (at_.file < std::ssize(files_)) {
    if (!file_) file_.emplace(files_[static_cast<size_t>(at_.file)]);
    if (at_.offset < file_->size()) return true;
    file_->require_unchanged(Code::kDataChanged);
    file_.reset();
    at_ = {.file = at_.file + 1};
  }
  return false;
}

std::optional<CorpusPiece> CorpusReader::next() {
  if (!open_next()) return std::nullopt;
  CorpusPiece piece = limits_.whole_files ? whole_file() : lines();
  piece.next = at_;
  return piece;
}

CorpusPiece CorpusReader::whole_file() {
  if (file_->size() > limits_.longest) {
    fail(Code::kBadDocument, file_->path(), "has", file_->size(),
         "bytes, more than a document may,", limits_.longest,
         "; with `format: lines` each line is one");
  }
  CorpusPiece out{.path = file_->path(), .is_first = true};
  out.text.resize(static_cast<size_t>(file_->size()));
  read_steadily(*file_, 0, std::as_writable_bytes(std::span(out.text)));
  at_.offset = file_->size();
  return out;
}

CorpusPiece CorpusReader::lines() {
  CorpusPiece out{.path = file_->path(), .first_line = at_.line, .is_first = at_.offset == 0};
  const int64_t left = file_->size() - at_.offset;
  for (int64_t wanted = limits_.piece;; wanted *= 2) {
    const auto have = std::ssize(out.text);
    const int64_t size = std::min({wanted, left, limits_.longest + limits_.piece});
    out.text.resize(static_cast<size_t>(size));
    read_steadily(*file_, at_.offset + have,
                  std::as_writable_bytes(std::span(out.text).subspan(static_cast<size_t>(have))));
    const size_t end = out.text.rfind('\n');
    if (end != std::string::npos) {
      out.text.resize(end + 1);
    } else if (size < left) {
      if (size <= limits_.longest) continue;
      skip_line(out);
      return out;
    }
    at_.offset += std::ssize(out.text);
    at_.line += std::ranges::count(out.text, '\n');
    return out;
  }
}

// Past a line that is too long, without keeping it.
void CorpusReader::skip_line(CorpusPiece& piece) {
  const int64_t begin = at_.offset;
  std::string& block = piece.text;
  block.resize(static_cast<size_t>(limits_.piece));
  while (at_.offset < file_->size()) {
    block.resize(static_cast<size_t>(std::min(limits_.piece, file_->size() - at_.offset)));
    read_steadily(*file_, at_.offset, std::as_writable_bytes(std::span(block)));
    const size_t end = block.find('\n');
    at_.offset += end == std::string::npos ? std::ssize(block) : static_cast<int64_t>(end) + 1;
    if (end != std::string::npos) break;
  }
  ++at_.line;
  piece.long_line = at_.offset - begin;
  block.clear();
}

}  // namespace troupe
