#include "troupe/train/observe/expert_use.h"

#include <cmath>
#include <numeric>

#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"

namespace troupe {

std::string spelled(const ExpertUse::Token& token) {
  return token.text.empty() ? std::to_string(token.id) : to_text(token.text);
}

double information_bits(const std::vector<std::vector<int64_t>>& n) {
  if (n.empty()) return 0;
  std::vector<int64_t> of_expert(n[0].size());
  for (const std::vector<int64_t>& row : n) {
    for (size_t e = 0; e < row.size(); ++e) of_expert[e] += row[e];
  }
  const auto all =
      static_cast<double>(std::accumulate(of_expert.begin(), of_expert.end(), int64_t{0}));
  double bits = 0;
  for (const std::vector<int64_t>& row : n) {
    const auto of_source = static_cast<double>(std::accumulate(row.begin(), row.end(), int64_t{0}));
    for (size_t e = 0; e < row.size(); ++e) {
      const auto both = static_cast<double>(row[e]);
      if (both == 0) continue;
      bits += both / all * std::log2(both * all / (of_source * static_cast<double>(of_expert[e])));
    }
  }
  return bits;
}

std::optional<ExpertUse> read_expert_use(const std::string& run) {
  const std::string path = run + '/' + kExpertsFile;
  if (!is_there(path)) return std::nullopt;
  ExpertUse out;
  read_config(parse_json(read_file(path), path), out);
  return out;
}

}  // namespace troupe
