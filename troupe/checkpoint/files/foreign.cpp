#include "troupe/checkpoint/files/foreign.h"

#include <filesystem>
#include <system_error>
#include <vector>

#include "troupe/core/check.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

constexpr char kToHub[] =
    "It is made of Python pickles, which can run any code and are never opened here. Make a "
    "Hugging Face folder of it: python3 -m troupe_foreign FOLDER OUT (docs/guide/bring_along.md), "
    "then: "
    "troupe import OUT RUN";

struct Seen {
  bool metadata = false, distcp = false, megatron = false, rank_folder = false;
  bool safetensors = false;
  std::string pickle = "";
};

Seen look(const std::string& folder) {
  Seen seen;
  std::error_code error;
  for (stdfs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename();
    seen.metadata |= name == ".metadata";
    seen.distcp |= name.ends_with(".distcp");
    seen.megatron |= name == "latest_checkpointed_iteration.txt" || name == "metadata.json";
    seen.rank_folder |= name.starts_with("mp_rank_") || name == "model_optim_rng.pt";
    seen.safetensors |= name.ends_with(".safetensors");
    if (name.ends_with(".pt") || name.ends_with(".pth") || name.ends_with(".bin")) {
      seen.pickle = name;
    }
  }
  return seen;
}

[[noreturn]] void refuse_folder(const std::string& folder, const std::string& what) {
  fail(Code::kForeignCheckpoint, folder, what);
}

}  // namespace

void refuse_foreign(const std::string& folder) {
  const Seen seen = look(folder);
  if (seen.megatron && (seen.distcp || !seen.safetensors)) {
    refuse_folder(folder, std::string("is a checkpoint of Megatron-LM. ") + kToHub);
  }
  if (seen.distcp) {
    refuse_folder(folder,
                  std::string("is a checkpoint of torch.distributed.checkpoint") +
                      (seen.metadata ? ". " : ", an incomplete one: .metadata is missing. ") +
                      kToHub);
  }
  if (seen.rank_folder) {
    refuse_folder(
        folder,
        std::string("is a checkpoint of Megatron-LM or MegaBlocks (mp_rank folders). ") + kToHub);
  }
}

void refuse_pickles(const std::string& folder) {
  const Seen seen = look(folder);
  if (seen.safetensors || seen.pickle.empty()) return;
  refuse_folder(folder,
                "holds " + seen.pickle +
                    ", a Python pickle, which can run any code and is never opened. Save it as "
                    "safetensors: safetensors.torch.save_file(torch.load(FILE, "
                    "weights_only=True), \"model.safetensors\")");
}

}  // namespace troupe
