// The text files of a corpus, read in order and in pieces.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "troupe/core/file/file.h"

namespace troupe {

// What the names stand for: a file is itself, a folder all files under it (those that begin with a
// dot left out), a pattern (*, ?, [...]) what it matches. Sorted within each name. A name that
// stands for nothing is an error; so are files that are no text (text_check.h), all in one.
std::vector<std::string> corpus_files(const std::vector<std::string>& names);

// Where reading resumes.
struct CorpusPlace {
  int64_t file = 0;    // of the list
  int64_t offset = 0;  // in it
  int64_t line = 1;    // that begins there
  static void visit(auto& c, auto&& f) {
    f("file", c.file);
    f("offset", c.offset);
    f("line", c.line);
  }
};

// Some whole lines of a file, or the whole of one.
struct CorpusPiece {
  std::string path;
  std::string text = {};
  int64_t first_line = 1;
  bool is_first = false;  // it begins the file
  std::optional<int64_t> long_line =
      {};                 // `text` is empty: this line, of so many bytes, is over the limit
  CorpusPlace next = {};  // behind it
};

class CorpusReader {
 public:
  struct Limits {
    bool whole_files = false;  // a piece is a file, else about `piece` bytes of lines
    int64_t piece = 1 << 20;
    int64_t longest = int64_t{64} << 20;  // line; or file, where pieces are files
  };
  CorpusReader(std::vector<std::string> files, Limits limits, CorpusPlace from = {});

  // The next piece; nothing at the end. Memory holds no more than the longest line and a piece.
  // A file that is longer than `longest` where pieces are files is E3106.
  std::optional<CorpusPiece> next();
  int64_t total_bytes() const { return total_bytes_; }
  int64_t bytes_before(const CorpusPlace& place) const;

 private:
  CorpusPiece whole_file();
  CorpusPiece lines();
  void skip_line(CorpusPiece& piece);
  bool open_next();

  std::vector<std::string> files_;
  std::vector<int64_t> sizes_;
  Limits limits_;
  CorpusPlace at_;
  std::optional<InputFile> file_;
  int64_t total_bytes_ = 0;
};

}  // namespace troupe
