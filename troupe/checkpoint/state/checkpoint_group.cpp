#include "troupe/checkpoint/state/checkpoint_group.h"

#include <optional>

#include "troupe/core/check.h"
#include "troupe/core/text/text.h"

namespace troupe {

std::vector<std::string> run_on_all(const CheckpointGroup& group,
                                    const std::function<std::string()>& f) {
  std::string mine;
  try {
    mine = '+' + f();
  } catch (const Error& e) {
    if (group.size == 1) throw;
    mine = '-' + to_text(e.code()) + ' ' + e.what();
  }
  std::vector<std::string> all = group.all_gather(mine);
  std::string lines;
  std::optional<Code> first;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    std::string& text = all[rank];
    if (text.starts_with('-')) {
      const size_t space = text.find(' ');
      if (!first) first = code_of(text.substr(1, space - 1));
      if (!lines.empty()) lines += '\n';
      lines += "rank ";
      lines += std::to_string(rank);
      lines += ": ";
      lines += text.substr(space + 1);
    } else {
      text.erase(0, 1);
    }
  }
  if (!lines.empty()) throw Error(lines, first.value_or(Code::kBrokenContract));
  return all;
}

}  // namespace troupe
