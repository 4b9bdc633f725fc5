#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <limits>
#include <string_view>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/distributed/world/world.h"

namespace troupe {
namespace {

int64_t number(const std::string& name, const std::string& text, int64_t least,
               int64_t most = std::numeric_limits<int32_t>::max()) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > most) {
    std::string what = "\"";
    what.append(text).append("\" is not a whole number from ").append(std::to_string(least));
    what.append(" to ").append(std::to_string(most));
    fail(Code::kBadValue, name, what);
  }
  return value;
}

// What one launcher calls the four numbers.
struct Names {
  const char* source;
  const char* sign;  // is set under this launcher alone
  const char *rank, *size, *local_rank, *local_size;
  const char *job = nullptr, *part = nullptr;  // which of its jobs this is, the same in all ranks
};
constexpr Names kLaunchers[] = {
    {"troupe launch", "TROUPE_LAUNCH", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"torchrun", "TORCHELASTIC_RUN_ID", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE",
     "TORCHELASTIC_RUN_ID"},
    {"RANK and WORLD_SIZE", "RANK", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", "PMIX_NAMESPACE"},
    {"SLURM", "SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID",
     "SLURM_NTASKS_PER_NODE", "SLURM_JOB_ID", "SLURM_STEP_ID"},
};

// Told that there are others and not which of them it is, each would train alone and write to the
// same folder.
void require_alone(const GetVariable& get) {
  constexpr std::pair<const char*, const char*> kOfOne[] = {
      {"WORLD_SIZE", "1"}, {"LOCAL_RANK", "0"}, {"LOCAL_WORLD_SIZE", "1"}};
  for (const auto& [name, of_one] : kOfOne) {
    const auto value = get(name);
    if (!value || *value == of_one) continue;
    std::string what = "is not set, although ";
    what.append(name).append("=").append(*value).append(
        " is: each process of a run of several needs RANK (from 0) and WORLD_SIZE. Set both, start "
        "them with troupe launch -n N, or unset ");
    fail(Code::kBadValue, "RANK", what.append(name).append(" to run one process"));
  }
}

// "gpu[3-5,7],login" begins with "gpu3", "n1,n2" with "n1".
std::string first_host(const std::string& list) {
  const size_t open = list.find('['), comma = list.find(',');
  if (open == std::string::npos || comma < open) return list.substr(0, comma);
  const size_t end = list.find_first_of("-,]", open);
  std::string host = list.substr(0, open);
  host.append(list, open + 1, end - open - 1);
  return host;
}

// The tasks of one node in "2(x4),1", which lists five nodes; 0: the list does not reach it.
int64_t tasks_of_node(const std::string& list, int64_t node) {
  constexpr const char* kName = "SLURM_STEP_TASKS_PER_NODE";
  for (size_t at = 0; at < list.size();) {
    const size_t end = std::min(list.find(',', at), list.size());
    const std::string entry = list.substr(at, end - at);
    const size_t open = entry.find("(x");
    int64_t nodes = 1;
    if (open != std::string::npos && entry.ends_with(')')) {
      nodes = number(kName, entry.substr(open + 2, entry.size() - open - 3), 1);
    }
    if (node < nodes) return number(kName, entry.substr(0, open), 1);
    node -= nodes;
    at = end + 1;
  }
  return 0;
}

}  // namespace

std::optional<LauncherEnvironment> launcher_environment_from(const GetVariable& get) {
  for (const Names& names : kLaunchers) {
    if (!get(names.sign)) continue;
    const auto needed = [&](const char* name) {
      const auto value = get(name);
      if (!value) {
        fail(Code::kBadValue, name,
             std::string("is not set, although ") + names.sign + " is: " + names.source +
                 " sets both. Unset " + names.sign + " to run one process");
      }
      return *value;
    };
    LauncherEnvironment p{.source = names.source};
    p.size = number(names.size, needed(names.size), 1);
    p.rank = number(names.rank, needed(names.rank), 0);
    if (p.rank >= p.size) {
      fail(Code::kBadValue, names.rank,
           "rank " + std::to_string(p.rank) + " in a world of " + std::to_string(p.size));
    }
    p.local_rank = p.rank;
    p.local_size = p.size;
    if (const auto text = get(names.local_rank)) p.local_rank = number(names.local_rank, *text, 0);
    if (const auto text = get(names.local_size)) p.local_size = number(names.local_size, *text, 1);
    p.has_local_rank = get(names.local_rank).has_value();
    if (const auto list = get("SLURM_STEP_NODELIST")) p.host = first_host(*list);
    const auto tasks = get("SLURM_STEP_TASKS_PER_NODE"), node = get("SLURM_NODEID");
    if (names.sign == std::string_view("SLURM_STEP_ID") && tasks && node) {
      const int64_t here = tasks_of_node(*tasks, number("SLURM_NODEID", *node, 0));
      if (here > 0) p.local_size = here;
    }
    if (const auto text = get("MASTER_ADDR")) p.host = *text;
    if (const auto text = get("MASTER_PORT")) {
      p.port = static_cast<int>(number("MASTER_PORT", *text, 1, 65535));
    }
    if (const auto text = get("TORCHELASTIC_RESTART_COUNT")) {
      p.attempt = number("TORCHELASTIC_RESTART_COUNT", *text, 0);
    }
    p.launcher_has_store = get("TORCHELASTIC_USE_AGENT_STORE").value_or("") == "True";
    for (const char* const name : {names.job, names.part}) {
      const auto text = name == nullptr ? std::nullopt : get(name);
      if (text) p.job += *text + '.';
    }
    // A word of this run alone, the same in all ranks: a prefix of all keys in the store.
    if (const auto token = get("TROUPE_TOKEN")) p.job += *token + '.';
    return p;
  }
  require_alone(get);
  return {};
}

std::optional<LauncherEnvironment> launcher_environment() {
  return launcher_environment_from([](const std::string& name) -> std::optional<std::string> {
    const char* const value = std::getenv(name.c_str());
    if (value == nullptr) return {};
    return value;
  });
}

}  // namespace troupe
