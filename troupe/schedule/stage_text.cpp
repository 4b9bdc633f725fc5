// The text form of stage maps (stage_map.h).
#include <algorithm>
#include <charconv>

#include "troupe/schedule/stage_map.h"

namespace troupe {
namespace {

constexpr std::string_view kMarks = "EtmL|";
constexpr size_t kMostParts = 4096;  // letters and bars of a map

struct Part {
  char mark;
  size_t position;  // in the text, from 1
};

std::string at(size_t position, const std::string& what) {
  return "position " + std::to_string(position) + ": " + what;
}

// Unfolds the repetitions.
class Unfolding {
 public:
  explicit Unfolding(std::string_view text) : text_(text) {
    while (next()) {
      const char c = text_[at_];
      if (c == '(') {
        bracket();
      } else if (is_mark(c)) {
        repeated(parts_);
      } else {
        unknown();
      }
    }
  }
  const std::vector<Part>& parts() const { return parts_; }
  const std::vector<std::string>& faults() const { return faults_; }

 private:
  static bool is_mark(char c) { return kMarks.find(c) != std::string_view::npos; }
  // Whether there is a character to look at, past what is for the eye.
  bool next() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == ',')) ++at_;
    return at_ < text_.size() && !full_;
  }
  void fault(size_t position, const std::string& what) {
    faults_.push_back(troupe::at(position + 1, what));
  }
  void unknown() {
    const char c = text_[at_];
    if (c == '*') {
      fault(at_, "nothing to repeat stands before \"*\"");
    } else if (c == ')') {
      fault(at_, "\")\" closes no bracket");
    } else {
      const bool shown = ' ' < c && c < 127;
      fault(at_, (shown ? '"' + std::string(1, c) + '"' : std::string("this")) +
                     " is none of E t m L | * ( )");
    }
    ++at_;
  }

  // A letter or bar, with its count.
  void repeated(std::vector<Part>& out) {
    const Part part{text_[at_], at_ + 1};
    ++at_;
    append(out, {part}, next() && text_[at_] == '*' ? count() : 1);
  }
  void bracket() {
    const size_t open = at_++;
    std::vector<Part> inside;
    while (next() && text_[at_] != ')') {
      if (is_mark(text_[at_])) {
        repeated(inside);
      } else if (text_[at_] == '(') {
        fault(at_++, "a bracket inside a bracket");
      } else {
        unknown();
      }
    }
    if (full_) return;
    if (at_ == text_.size()) return fault(open, "the bracket is not closed");
    ++at_;
    if (!next() || text_[at_] != '*') return fault(open, "the bracket has no count, as in (tt|)*3");
    append(parts_, inside, count());
  }
  // The n of "*n".
  size_t count() {
    const size_t star = at_++;
    size_t n = 0;
    const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), n);
    at_ = static_cast<size_t>(end - text_.data());
    if (error == std::errc() && 0 < n && n <= kMostParts) return n;
    fault(star, "a count from 1 to " + std::to_string(kMostParts) + " follows \"*\"");
    return 0;
  }
  void append(std::vector<Part>& out, const std::vector<Part>& what, size_t times) {
    if (what.size() * times + out.size() > kMostParts) {
      fault(at_ - 1, "more than " + std::to_string(kMostParts) + " letters and bars");
      full_ = true;
      return;
    }
    for (size_t i = 0; i < times; ++i) out.insert(out.end(), what.begin(), what.end());
  }

  std::string_view text_;
  size_t at_ = 0;
  bool full_ = false;
  std::vector<Part> parts_;
  std::vector<std::string> faults_;
};

// What is wrong with the letters and bars as a map.
std::vector<std::string> misfits(const std::vector<Part>& parts, const PipelineShape& shape) {
  std::vector<std::string> out;
  int stages = 1;
  int count[4] = {};
  bool other[4] = {};                // reported once a letter
  size_t furthest = 0, letters = 0;  // the order of the letters is that of kMarks
  for (const Part& p : parts) {
    const size_t kind = kMarks.find(p.mark);
    if (p.mark == '|') {
      ++stages;
      continue;
    }
    const std::string name = std::string("\"") + p.mark + '"';
    if (kind < furthest && !other[kind]) {
      out.push_back(at(p.position, name + " behind \"" + kMarks[furthest] + '"'));
      other[kind] = true;
    }
    furthest = std::max(furthest, kind);
    ++letters;
    const bool single = p.mark == 'E' || p.mark == 'L';
    if (++count[kind] == 2 && single) out.push_back(at(p.position, "a second " + name));
  }
  if (count[0] == 0) out.push_back("the embedding, \"E\", is missing");
  if (count[3] == 0) out.push_back("the head, \"L\", is missing");
  const auto compare = [&](int is, int all, const char* what) {
    if (is == all) return;
    out.push_back(std::to_string(is) + " of the " + std::to_string(all) + what +
                  (is == 1 ? " is in it" : " are in it"));
  };
  compare(count[1], shape.layers, " layers");
  compare(count[2], shape.mtp, " MTP modules");
  const std::string on =
      std::to_string(stages) + " stages on " + std::to_string(shape.ranks) + " ranks";
  if (shape.path == StagePath::kVee && stages != 2 * shape.ranks) {
    out.push_back(on + ", and a V has two a rank");
  } else if (stages % shape.ranks != 0) {
    out.push_back(on);
  }
  return out;
}

// A map near these parts that fits: as many stages as ranks allow, and their blocks, evened where
// there are too few or too many.
StageMap nearest(const std::vector<Part>& parts, const PipelineShape& shape) {
  std::vector<int> blocks(1, 0);
  for (const Part& p : parts) {
    if (p.mark == '|') blocks.push_back(0);
    if (p.mark == 't') ++blocks.back();
  }
  const size_t ranks = static_cast<size_t>(shape.ranks);
  const size_t rounds = std::max<size_t>(1, (blocks.size() + ranks / 2) / ranks);
  blocks.resize(ranks * (shape.path == StagePath::kVee ? 2 : rounds), 0);
  int left = shape.layers;
  for (const int b : blocks) left -= b;
  for (; left > 0; --left) ++*std::min_element(blocks.begin(), blocks.end());
  for (; left < 0; ++left) --*std::max_element(blocks.begin(), blocks.end());
  StageMap out{std::move(blocks)};
  out.sizes.front() += 1;
  out.sizes.back() += shape.mtp + 1;
  return out;
}

std::string digits_of(size_t n) {
  return '*' + std::to_string(n);
}

size_t digits_size(size_t n) {  // of digits_of(n)
  size_t size = 2;
  for (; n >= 10; n /= 10) ++size;
  return size;
}

// n times one mark.
std::string run_text(char mark, size_t n) {
  return n > 1 && 1 + digits_size(n) <= n ? mark + digits_of(n) : std::string(n, mark);
}
size_t run_size(size_t n) {
  return n > 1 ? std::min(1 + digits_size(n), n) : n;
}

// The text without brackets.
std::string runs_text(std::string_view marks) {
  std::string out;
  for (size_t i = 0, end = 0; i < marks.size(); i = end) {
    end = std::min(marks.find_first_not_of(marks[i], i), marks.size());
    out += run_text(marks[i], end - i);
  }
  return out;
}

// The first piece of the shortest text from each place on: `length` marks, `times` over. A bracket
// holds whole stages: Et*3|(tt|)*29, and not Et(tt|)*30.
struct Repeat {
  size_t cost = 0;  // characters from here to the end
  size_t length = 1, times = 1;
  bool bracket = false;
};

// Time: n^2 log n for n marks, of which a text may ask for thousands: no text is made on the way.
std::vector<Repeat> shortest(std::string_view marks) {
  const size_t n = marks.size();
  std::vector<Repeat> best(n + 1);
  // alike[len]: how far from here on marks are those `len` places later.
  std::vector<size_t> alike(n + 1, 0);
  for (size_t i = n; i-- > 0;) {
    best[i].cost = n + 1;
    const auto offer = [&](Repeat piece, size_t cost) {
      piece.cost = cost + best[i + piece.length * piece.times].cost;
      if (piece.cost < best[i].cost) best[i] = piece;
    };
    const size_t run = std::min(marks.find_first_not_of(marks[i], i), n) - i;
    for (size_t times = run; times > 0; --times) {
      offer({.times = times}, run_size(times));
    }
    const bool begins = i == 0 || marks[i - 1] == '|';
    size_t runs = 0, last = 0;  // of the `length` marks: characters of the runs before the last,
                                // and that run's marks
    for (size_t length = 1; i + length < n; ++length) {
      if (length > 1 && marks[i + length - 1] != marks[i + length - 2]) {
        runs += run_size(last);
        last = 0;
      }
      ++last;
      alike[length] = marks[i] == marks[i + length] ? alike[length] + 1 : 0;
      const bool whole = begins && length > 1 && marks[i + length - 1] == '|';
      if (!whole || alike[length] < length) continue;
      const size_t cost = runs + run_size(last) + 2;
      for (size_t times = alike[length] / length + 1; times > 1; --times) {
        offer({.length = length, .times = times, .bracket = true}, cost + digits_size(times));
      }
    }
  }
  return best;
}

}  // namespace

StageMapText read_stage_map(std::string_view text, const PipelineShape& shape) {
  const Unfolding unfolded(text);
  StageMapText out{.faults = unfolded.faults()};
  if (!out.faults.empty()) return out;
  out.faults = misfits(unfolded.parts(), shape);
  if (!out.faults.empty()) {
    out.faults.push_back("the nearest that fits is \"" +
                         stage_text(nearest(unfolded.parts(), shape), shape) + '"');
    return out;
  }
  out.map.sizes = {0};
  for (const Part& p : unfolded.parts()) {
    if (p.mark == '|') {
      out.map.sizes.push_back(0);
    } else {
      ++out.map.sizes.back();
    }
  }
  return out;
}

std::string stage_text(const StageMap& map, const PipelineShape& shape) {
  const std::string chain = 'E' + std::string(static_cast<size_t>(shape.layers), 't') +
                            std::string(static_cast<size_t>(shape.mtp), 'm') + 'L';
  std::string marks;
  size_t at = 0;
  for (size_t s = 0; s < map.sizes.size(); ++s) {
    if (s > 0) marks += '|';
    marks += chain.substr(at, static_cast<size_t>(map.sizes[s]));
    at += static_cast<size_t>(map.sizes[s]);
  }
  const std::vector<Repeat> pieces = shortest(marks);
  std::string out;
  for (size_t i = 0; i < marks.size();) {
    const Repeat& piece = pieces[i];
    const std::string_view inside = std::string_view(marks).substr(i, piece.length);
    i += piece.length * piece.times;
    if (!piece.bracket) {
      out += run_text(inside[0], piece.times);
      continue;
    }
    out += '(' + runs_text(inside) + ')' + digits_of(piece.times);
    if (i < marks.size() && marks[i] != '|') out += ',';
  }
  return out;
}

}  // namespace troupe
