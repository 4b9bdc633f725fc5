#include "troupe/train/recipe/foreign/stage_texts.h"

#include <algorithm>
#include <map>
#include <vector>

namespace troupe {
namespace {

std::string blocks(int64_t n) {
  return n == 1 ? "t" : "t*" + std::to_string(n);
}

std::string of_lists(const std::string& text) {
  const std::map<std::string, char> letters = {
      {"embedding", 'E'}, {"decoder", 't'}, {"mtp", 'm'}, {"loss", 'L'}};
  std::string out;
  int depth = 0, stages = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '[' && ++depth == 2 && stages++ > 0) out += '|';
    if (c == ']') --depth;
    if (c != '\'' && c != '"') continue;
    const size_t end = text.find(c, i + 1);
    if (end == std::string::npos || depth != 2) return "";
    const auto letter = letters.find(text.substr(i + 1, end - i - 1));
    if (letter == letters.end()) return "";
    out += letter->second;
    i = end;
  }
  return depth == 0 && stages > 0 ? out : "";
}

}  // namespace

std::string stages_of_layout(const std::string& layout) {
  if (layout.starts_with('[')) return of_lists(layout);
  return layout.find_first_not_of("EtmL|*(), 0123456789") == std::string::npos ? layout : "";
}

std::string stages_of_counts(const StageCounts& c) {
  // Blocks of each stage, before the two ends give up what stands for a block.
  const int64_t given = c.first.has_value() + c.last.has_value(), others = c.pipeline - given;
  const int64_t left = c.layers + c.embedding + c.loss - c.first.value_or(0) - c.last.value_or(0);
  if (c.pipeline < 2 || left < 0 || (others == 0 ? left != 0 : left % others != 0)) return "";
  const int64_t each = others == 0 ? 0 : left / others;
  const int64_t first = c.first.value_or(each) - c.embedding, last = c.last.value_or(each) - c.loss;
  if (first < 0 || last < 0) return "";
  std::string out = "E";
  if (first > 0) out += blocks(first);
  out += '|';
  if (c.pipeline > 2) {
    out += each > 0 ? '(' + blocks(each) + "|)*" : "|*";
    out += std::to_string(c.pipeline - 2);
  }
  if (last > 0) out += (c.pipeline > 2 ? "," : "") + blocks(last);
  for (int64_t i = 0; i < c.mtp; ++i) out += 'm';
  return out + 'L';
}

namespace {

// From the layers of each stage.
std::string of_sizes(const std::vector<int64_t>& sizes) {
  std::string out = "E";
  for (size_t stage = 0; stage < sizes.size(); ++stage) {
    if (sizes[stage] < 0) return "";
    if (stage > 0) out += '|';
    if (sizes[stage] > 0) out += blocks(sizes[stage]);
  }
  return sizes.empty() ? "" : out + 'L';
}

// The number of "layers.12"; -1: it is none.
int64_t layer_of(const std::string& name) {
  const std::string root = "layers.";
  if (!name.starts_with(root) || name.size() == root.size() || name.size() > root.size() + 6)
    return -1;
  int64_t out = 0;
  for (const char c : name.substr(root.size())) {
    if (c < '0' || c > '9') return -1;
    out = 10 * out + (c - '0');
  }
  return out;
}

}  // namespace

std::string stages_of_modules(const std::vector<std::vector<std::string>>& stages, int64_t layers) {
  std::vector<int64_t> sizes;
  int64_t next = 0;
  for (const std::vector<std::string>& stage : stages) {
    sizes.push_back(0);
    for (const std::string& name : stage) {
      const int64_t layer = layer_of(name);
      if (layer < 0) continue;
      if (layer != next++) return "";
      ++sizes.back();
    }
  }
  return layers == 0 || next == layers ? of_sizes(sizes) : "";
}

std::string stages_of_points(const std::vector<std::string>& points, int64_t layers) {
  std::vector<int64_t> sizes;
  int64_t begin = 0;
  for (const std::string& point : points) {
    const int64_t layer = layer_of(point);
    if (layer < begin || layer > layers) return "";
    sizes.push_back(layer - begin);
    begin = layer;
  }
  sizes.push_back(layers - begin);
  return of_sizes(sizes);
}

std::string stages_of_weights(int64_t layers, int64_t stages, int64_t in, int64_t out) {
  if (stages < 1) return "";
  const int64_t all = layers + in + out, each = all / stages;
  std::vector<int64_t> sizes(static_cast<size_t>(stages), each);
  for (int64_t i = 0; i < all % stages; ++i) ++sizes[static_cast<size_t>(i)];
  sizes.front() -= in;
  sizes.back() -= out;
  return of_sizes(sizes);
}

}  // namespace troupe
