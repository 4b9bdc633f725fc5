#include "troupe/train/forecast/agree_layout.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <sstream>
#include <string>

#include "troupe/core/config/config.h"
#include "troupe/core/config/yaml.h"
#include "troupe/train/forecast/forecast.h"

namespace troupe {
namespace {

// All ranks choose alike: memory is that of the least; hosts of unequal numbers of ranks count as
// several of so many ranks as divide all of them, and as one a rank where ranks are dealt over
// them.
RanksAtHand agreed(const Recipe& recipe, World& world) {
  RanksAtHand ranks{.world = world.size(),
                    .per_host = 0,
                    .memory = available_memory(recipe, world.place().local_size),
                    .on_gpu = runs_on_gpu(recipe)};
  const std::string mine = std::to_string(static_cast<int64_t>(ranks.memory)) + ' ' +
                           std::to_string(world.place().local_size);
  for (const std::string& text : world.all_gather_texts("memory", mine)) {
    const size_t blank = std::min(text.find(' '), text.size());
    const int64_t bytes = number_of_peer(text.substr(0, blank), "a rank's memory");
    ranks.memory = std::min(ranks.memory, static_cast<double>(bytes));
    ranks.per_host = std::gcd(
        ranks.per_host,
        number_of_peer(text.substr(std::min(blank + 1, text.size())), "the ranks of a host"));
  }
  if (!world.hosts_in_rows()) ranks.per_host = 1;
  return ranks;
}

}  // namespace

LayoutChoice agree_layout(const Recipe& recipe, World& world) {
  const RanksAtHand ranks = agreed(recipe, world);
  LayoutChoice out = choose_layout(recipe, ranks, machine_of(recipe, ranks.on_gpu));
  out.parallel = settled(out.parallel, needs_of(recipe, ranks.world, ranks.per_host));
  std::ostringstream own;
  if (world.rank() == 0) print_config(own, out);
  const std::string first = world.all_gather_texts("layout", own.str())[0];
  const bool meets_rank_0 = world.rank() != 0 && !world.played();
  if (meets_rank_0) read_config(parse_yaml(first, "rank 0's layout"), out);
  return out;
}

}  // namespace troupe
