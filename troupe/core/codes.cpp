#include "troupe/core/codes.h"

namespace troupe {

// LONG: one table, a case a code. A switch, so that the compiler misses a code without its
// paragraph.
std::string_view explain(Code code) {
  switch (code) {
    case Code::kBadSyntax:
      return "The recipe is not valid YAML, or is far larger or deeper than any recipe is. The "
             "message names line and column. Usual causes: a tab in the indentation, a quote or "
             "bracket that is not closed, a colon without a space after it.";
    case Code::kWrittenTwice:
      return "One section names the same field twice, and only one of the two could count. Delete "
             "one.";
    case Code::kNoSuchField:
      return "The section has no field of this name. The message offers the nearest name, or the "
             "section that does have it. Nothing in a recipe is ever ignored.";
    case Code::kNoSuchKind:
      return "A section whose field `kind` picks an implementation names one that does not exist. "
             "The message lists what there is, or the nearest name.";
    case Code::kBadValue:
      return "The field exists but cannot take this value: text for a number, a number out of "
             "range, a unit that is not known, yes or no where true or false is meant. The message "
             "says what is accepted.";
    case Code::kBadOverride:
      return "--set takes path=value, as in --set model.moe.top_k=8. The value may be any YAML; "
             "quote it for the shell where it has spaces or brackets.";
    case Code::kNoRecipe:
      return "The recipe cannot be read. The message holds the system's reason.";
    case Code::kUnreadableData:
      return "A file of the data set or the tokenizer cannot be opened or read, or is not a "
             "regular "
             "file. The message holds path, offset and the system's reason.";
    case Code::kBadJson:
      return "A JSON document is malformed, names a field twice, or is far larger or deeper than "
             "any of ours is. The message names the file and the place in it.";
    case Code::kUnreadableCheckpoint:
      return "A file of a checkpoint or a model folder cannot be opened or read, or is not a "
             "regular file. An older checkpoint of the same run may be intact: see `troupe "
             "inspect`.";
    case Code::kNoSpace:
      return "The disk or the user's quota is full. The message says how many bytes were needed "
             "and "
             "how many are free. What was published before is intact; make room and run the same "
             "command.";
    case Code::kFileFailed:
      return "The system refused to write, sync, rename or make a file. The message holds path, "
             "operation and reason. What was published before is intact.";
    case Code::kOldCpu:
      return "This build's CPU kernels use instructions that the processor does not have. Build "
             "with -DTROUPE_CPU_ARCH= (empty), or use a processor with AVX2 and FMA (2013 or "
             "later).";
    case Code::kCudaFailed:
      return "A CUDA call or kernel failed. The message names the call and CUDA's reason. A "
             "kernel's fault may surface at a later call: build with TROUPE_SYNC_LAUNCHES to see "
             "where it began.";
    case Code::kBrokenContract:
      return "A function of Troupe was called with arguments outside its contract. Reached through "
             "the program `troupe` this is a bug of ours: please report the message. From your own "
             "code, the message names the condition and the values.";
  }
  return {};
}

std::vector<Code> all_codes() {
  std::vector<Code> out;
  for (int number = 1000; number < 10000; ++number) {
    const Code code = static_cast<Code>(number);
    if (!explain(code).empty()) out.push_back(code);
  }
  return out;
}

std::optional<Code> code_of(std::string_view text) {
  for (const Code code : all_codes()) {
    if (to_text(code) == text) return code;
  }
  return std::nullopt;
}

}  // namespace troupe
