#include "troupe/train/recipe/foreign/convert_recipe.h"

#include <algorithm>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/one_line.h"
#include "troupe/train/recipe/foreign/draft.h"
#include "troupe/train/recipe/foreign/foreign_format.h"
#include "troupe/train/recipe/foreign/foundry.h"
#include "troupe/train/recipe/foreign/megablocks.h"
#include "troupe/train/recipe/foreign/megatron.h"
#include "troupe/train/recipe/foreign/torchtitan.h"

namespace troupe {
Conversion convert_recipe(const std::string& text, const std::string& file, ForeignKind kind,
                          const std::map<std::string, std::string>& variables) {
  const std::string unread = unread_format(text, file);
  if (!unread.empty()) fail(Code::kBadValue, file, "is " + unread + ". No recipe is made of it");
  if (kind == ForeignKind::kAuto) kind = foreign_kind(text);
  if (kind == ForeignKind::kAuto) {
    fail(
        Code::kBadValue, file,
        "is YAML, and of none of the programs that are read: Megatron-LM's has MODEL_ARGS, "
        "LLM-Foundry's model.name and train_loader, MegaBlocks' moe_num_experts. --from says whose "
        "it is");
  }
  Draft draft;
  if (kind == ForeignKind::kMegatron) convert_megatron(text, file, variables, draft);
  if (kind == ForeignKind::kFoundry) convert_foundry(text, file, draft);
  if (kind == ForeignKind::kTorchtitan) convert_torchtitan(text, file, draft);
  if (kind == ForeignKind::kMegaBlocks) convert_megablocks(text, file, draft);
  if (kind == ForeignKind::kMegaBlocks) {
    draft.note(
        "a layer's arguments are no run: heads, vocab, data, train and checkpoint are to be "
        "said");
  }
  return draft.finish(kind != ForeignKind::kMegaBlocks);
}

void add_faults(Conversion& conversion, const std::vector<std::string>& lines) {
  for (const std::string& line : lines) {
    const bool open = std::ranges::any_of(conversion.open, [&](const std::string& key) {
      return line.find(key) != std::string::npos;
    });
    if (open) continue;
    conversion.waits ? conversion.missing.push_back("until then `check` says: " + one_line(line))
                     : conversion.faults.push_back(one_line(line));
  }
}

std::string recipe_file(const Conversion& conversion) {
  std::string out;
  for (const auto& [what, lines] : {std::pair{"not supported", &conversion.refused},
                                    {"not supported yet", &conversion.deferred},
                                    {"`check` finds", &conversion.faults},
                                    {"to be filled in", &conversion.missing}}) {
    for (const std::string& line : *lines) out += comment_line(what, line);
  }
  return out + conversion.recipe;
}

}  // namespace troupe
