// The text files of a corpus, read in order and in pieces.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "troupe/data/text/documents.h"
#include "troupe/data/text/text_stream.h"

namespace troupe {

// What the names stand for: a file is itself, a folder all files under it (those that begin with a
// dot left out), a pattern (*, ?, [...]) what it matches. Sorted within each name. In a folder with
// tables (Parquet, Arrow) what Hugging Face's datasets writes beside them is left out: README.md,
// LICENSE, dataset_info.json, state.json. A name that stands for nothing is an error; so are files
// that are no text (text_check.h) and no table of rows, all in one.
std::vector<std::string> corpus_files(const std::vector<std::string>& names);

// Where reading resumes.
struct CorpusPlace {
  int64_t file = 0;    // of the list
  int64_t offset = 0;  // in its text
  int64_t line = 1;    // that begins there; of a table, the row
  int64_t read = 0;    // bytes of the file, as it is stored, behind which that is
  static void visit(auto& c, auto&& f) {
    f("file", c.file);
    f("offset", c.offset);
    f("line", c.line);
    f("read", c.read);
  }
};

// Some whole lines of a file, or the whole of one.
struct CorpusPiece {
  std::string path;
  CorpusFormat format = CorpusFormat::kText;  // of the file; not kAuto
  std::string text = {};
  int64_t first_line = 1;
  bool is_table = false;  // lines are rows of a table
  bool is_first = false;  // it begins the file
  std::optional<int64_t> long_line =
      {};                 // `text` is empty: this line, of so many bytes, is over the limit
  CorpusPlace next = {};  // behind it
};

class CorpusReader {
 public:
  struct Limits {
    CorpusFormat format = CorpusFormat::kAuto;  // each file's own; kText: a piece is a file
    std::string key = "text";                   // the column of tables; empty: all of them
    int64_t piece = 1 << 20;                    // about so many bytes of lines
    int64_t longest = int64_t{64} << 20;        // line; or file, where pieces are files
  };
  CorpusReader(std::vector<std::string> files, Limits limits, CorpusPlace from = {});

  // The next piece; nothing at the end. Memory holds no more than the longest line and a piece.
  // A file that is longer than `longest` where pieces are files is E3106.
  std::optional<CorpusPiece> next();
  int64_t total_bytes() const { return total_bytes_; }  // as the files are stored
  int64_t bytes_before(const CorpusPlace& place) const;

 private:
  CorpusPiece whole_file();
  CorpusPiece lines();
  void skip_line(CorpusPiece& piece);
  void open();
  size_t append(std::string& text, int64_t bytes);

  std::vector<std::string> files_;
  std::vector<int64_t> sizes_;
  Limits limits_;
  CorpusPlace at_;
  std::unique_ptr<TextStream> text_;  // of the file at `at_`
  CorpusFormat format_ = CorpusFormat::kText;
  bool is_table_ = false;
  std::string read_ahead_;  // behind `at_`
  int64_t total_bytes_ = 0;
};

}  // namespace troupe
