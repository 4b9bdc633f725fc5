#include "troupe/schedule/text.h"

namespace troupe {

std::string to_text(const Action& action) {
  std::string out = to_text(action.kind);
  if (action.chunk >= 0) out += std::to_string(action.chunk);
  if (action.microbatch >= 0) out += '.' + std::to_string(action.microbatch);
  if (action.peer >= 0)
    out += (action.kind == Kind::kSend ? '>' : '<') + std::to_string(action.peer);
  char mark = '@';
  for (const int position : action.after) {
    out += mark + std::to_string(position);
    mark = ',';
  }
  return action.beside ? out + '&' : out;
}

std::string to_text(const Schedule& schedule) {
  std::string out;
  for (size_t rank = 0; rank < schedule.size(); ++rank) {
    out += std::to_string(rank) + ':';
    for (const Action& action : schedule[rank]) out += ' ' + to_text(action);
    out += '\n';
  }
  return out;
}

}  // namespace troupe
