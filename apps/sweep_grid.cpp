#include "apps/sweep_grid.h"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <set>
#include <string_view>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/config/config_traits.h"
#include "troupe/core/number/rng.h"
#include "troupe/train/recipe/problems.h"

namespace troupe {
namespace {

constexpr size_t kLongestValue = 40, kLongestName = 200;  // bytes in a folder's name

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  if (first == std::string_view::npos) return {};
  return std::string(text.substr(first, text.find_last_not_of(' ') - first + 1));
}

// Where the quoted text that begins at `i` ends; the last byte where it does not.
size_t end_of_quotes(const std::string& text, size_t i) {
  const char quote = text[i];
  while (++i < text.size() && text[i] != quote) {
    if (quote == '"' && text[i] == '\\') ++i;
  }
  return std::min(i, text.size() - 1);
}

// The part of a value that a folder's name can have, on any file system and in any shell.
std::string name_part(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '"' || c == '\'') continue;
    const bool plain = ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z') || ('0' <= c && c <= '9') ||
                       c == '.' || c == '+' || c == '-' || c == '_';
    out += plain ? c : '_';
  }
  return out.substr(0, kLongestValue);
}

std::string leaf_of(const std::string& path) {
  return path.substr(path.rfind('.') + 1);  // all of it where there is no dot
}

void check_axis(const SweepAxis& axis, Problems& problems) {
  const std::string place = "--set " + axis.path;
  if (axis.path == "checkpoint.dir") {
    problems.add(place, "is the folder of each run, which the sweep chooses below --out");
  }
  if (axis.values.size() == 1) return;
  std::set<std::string> seen;
  for (const std::string& value : axis.values) {
    if (value.empty()) {
      problems.add(place, "has an empty value between two commas");
    } else if (!seen.insert(value).second) {
      problems.add(place, "has the value " + value + " twice");
    }
  }
}

}  // namespace

std::vector<std::string> split_values(const std::string& text) {
  std::vector<std::string> out;
  size_t begin = 0;
  int depth = 0;
  char before = ',';  // the last byte that is no space: quotes begin a value, an item or a field
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool begins = std::string_view(",[{:").find(before) != std::string_view::npos;
    if ((c == '"' || c == '\'') && begins) {
      i = end_of_quotes(text, i);
    } else if (c == '[' || c == '{') {
      ++depth;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && depth <= 0) {
      out.push_back(trimmed(std::string_view(text).substr(begin, i - begin)));
      begin = i + 1;
    }
    if (text[i] != ' ') before = text[i];
  }
  out.push_back(trimmed(std::string_view(text).substr(begin)));
  return out;
}

SweepGrid::SweepGrid(const std::vector<std::string>& sets) {
  const Sources nowhere;
  Problems problems(nowhere);
  for (const std::string& set : sets) {
    const size_t equals = set.find('=');
    if (equals == 0 || equals == std::string::npos) {
      problems.add("--set " + set, "is not of the form path=value or path=value,value",
                   Code::kBadOverride);
      continue;
    }
    const std::string path = set.substr(0, equals);
    if (std::ranges::find(all_, path, &SweepAxis::path) != all_.end()) {
      problems.add("--set " + path, "is given twice; list its values in one --set");
      continue;
    }
    all_.push_back({path, split_values(set.substr(equals + 1))});
    check_axis(all_.back(), problems);
  }
  if (problems.empty() && axes().empty()) {
    problems.add("--set",
                 "lists several values nowhere, so that there is one run: give some, such as "
                 "--set train.optimizer.lr=1e-3,3e-3, or take `troupe train`");
  }
  if (size() > kMostSweepPoints) {
    problems.add("--set", "makes more than " + std::to_string(kMostSweepPoints) + " combinations");
  }
  problems.throw_if_any();
}

int64_t SweepGrid::size() const {
  int64_t out = 1;
  for (const SweepAxis& axis : all_) {
    out *= std::ssize(axis.values);
    if (out > kMostSweepPoints) return kMostSweepPoints + 1;
  }
  return out;
}

std::vector<SweepAxis> SweepGrid::axes() const {
  std::vector<SweepAxis> out;
  std::ranges::copy_if(all_, std::back_inserter(out),
                       [](const SweepAxis& axis) { return axis.values.size() > 1; });
  return out;
}

SweepPoint SweepGrid::point(int64_t index) const {
  std::vector<const std::string*> values(all_.size());
  for (size_t i = all_.size(); i-- > 0;) {
    const int64_t count = std::ssize(all_[i].values);
    values[i] = &all_[i].values[static_cast<size_t>(index % count)];
    index /= count;
  }
  SweepPoint out;
  for (size_t i = 0; i < all_.size(); ++i) {
    const SweepAxis& axis = all_[i];
    out.sets.push_back(axis.path + '=' + *values[i]);
    if (axis.values.size() == 1) continue;
    out.swept.push_back(out.sets.back());
    const bool alone = std::ranges::none_of(all_, [&](const SweepAxis& other) {
      return &other != &axis && other.values.size() > 1 &&
             leaf_of(other.path) == leaf_of(axis.path);
    });
    out.name += (out.name.empty() ? "" : ",") + name_part(alone ? leaf_of(axis.path) : axis.path) +
                '=' + name_part(*values[i]);
  }
  out.name.resize(std::min(out.name.size(), kLongestName));
  return out;
}

std::vector<SweepPoint> SweepGrid::points(const std::optional<int64_t>& sample,
                                          uint64_t seed) const {
  const int64_t count = sample.value_or(size());
  if (count > size()) {
    fail(Code::kBadValue, "--sample", count, "is more than the", size(), "combinations that --set",
         "makes");
  }
  if (count > kMostSweepRuns) {
    fail(Code::kBadValue, "--set", "makes", count, "runs, and a sweep has at most", kMostSweepRuns,
         "of them: take a --sample");
  }
  std::vector<int64_t> indices(static_cast<size_t>(size()));
  std::iota(indices.begin(), indices.end(), int64_t{0});
  const Rng rng(seed, stream_of("sweep"));
  for (size_t i = 0; sample && i < static_cast<size_t>(count); ++i) {  // Fisher and Yates
    const Words4 random = rng.bits(i);
    const uint64_t wide = uint64_t{random.w[1]} << 32 | random.w[0];
    std::swap(indices[i], indices[i + wide % (indices.size() - i)]);
  }
  indices.resize(static_cast<size_t>(count));
  std::ranges::sort(indices);
  std::vector<SweepPoint> out;
  std::set<std::string> names;
  for (const int64_t index : indices) {
    SweepPoint& next = out.emplace_back(point(index));
    const std::string name = next.name;
    for (int again = 2; !names.insert(next.name).second; ++again) {
      next.name = name + '~' + std::to_string(again);
    }
  }
  return out;
}

}  // namespace troupe
