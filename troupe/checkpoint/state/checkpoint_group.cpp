#include "troupe/checkpoint/state/checkpoint_group.h"

#include <numeric>
#include <optional>
#include <span>

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

std::vector<std::string> exchange_texts(const CheckpointGroup& group,
                                        const std::vector<std::string>& texts) {
  const auto ranks = static_cast<size_t>(group.size);
  std::vector<int64_t> to(ranks), from(ranks);
  for (size_t r = 0; r < ranks; ++r) to[r] = std::ssize(texts[r]);
  const std::vector<int64_t> each(ranks, sizeof(int64_t));
  group.all_to_all({.out = std::as_bytes(std::span(to)),
                    .to = each,
                    .in = std::as_writable_bytes(std::span(from)),
                    .from = each});
  std::string out,
      in(static_cast<size_t>(std::accumulate(from.begin(), from.end(), int64_t{0})), '\0');
  for (const std::string& text : texts) out += text;
  group.all_to_all({.out = std::as_bytes(std::span(out)),
                    .to = to,
                    .in = std::as_writable_bytes(std::span(in)),
                    .from = from});
  std::vector<std::string> back;
  size_t at = 0;
  for (const int64_t size : from) {
    back.push_back(in.substr(at, static_cast<size_t>(size)));
    at += static_cast<size_t>(size);
  }
  return back;
}

}  // namespace troupe
