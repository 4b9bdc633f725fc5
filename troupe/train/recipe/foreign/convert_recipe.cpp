#include "troupe/train/recipe/foreign/convert_recipe.h"

#include "troupe/core/check.h"
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

}  // namespace troupe
