#include "troupe/data/text/preference_pair.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>

namespace troupe {
namespace {

using Messages = std::vector<ChatMessage>;

bool is_text(const Messages& messages) {
  return messages.size() == 1 && !messages[0].has_marks;
}

// What a message holds beside its content, as tool calls, counts as it is written.
bool is_same(const ChatMessage& a, const ChatMessage& b) {
  return a.role == b.role && a.content == b.content && (a.content || a.json == b.json);
}

size_t num_same(const Messages& a, const Messages& b) {
  const auto [x, y] = std::ranges::mismatch(a, b, is_same);
  return static_cast<size_t>(x - a.begin());
}

// How many bytes of two texts are the prompt: whole characters, without a space at their end.
size_t common_bytes(std::string_view a, std::string_view b) {
  auto same = static_cast<size_t>(std::ranges::mismatch(a, b).in1 - a.begin());
  const auto goes_on = [&](std::string_view text) {
    return same < text.size() && (static_cast<unsigned char>(text[same]) & 0xC0U) == 0x80U;
  };
  while (same > 0 && (goes_on(a) || goes_on(b))) --same;
  return same > 0 && a[same - 1] == ' ' ? same - 1 : same;
}

PreferencePair split_texts(const Messages& chosen, const Messages& rejected) {
  const std::string &a = *chosen[0].content, &b = *rejected[0].content;
  const size_t same = common_bytes(a, b);
  PreferencePair out{.prompt = chosen, .chosen = chosen, .rejected = rejected};
  out.prompt[0].role = "user";
  out.prompt[0].content = a.substr(0, same);
  out.chosen[0].content = a.substr(same);
  out.rejected[0].content = b.substr(same);
  return out;
}

PreferencePair split_lists(size_t same, const Messages& chosen, const Messages& rejected) {
  const auto at = static_cast<std::ptrdiff_t>(same);
  return {.prompt = Messages(chosen.begin(), chosen.begin() + at),
          .chosen = Messages(chosen.begin() + at, chosen.end()),
          .rejected = Messages(rejected.begin() + at, rejected.end())};
}

bool begins_with(const Messages& list, const Messages& prompt) {
  return list.size() >= prompt.size() && num_same(list, prompt) == prompt.size();
}

bool is_empty(const Messages& answer) {
  return answer.empty() || (is_text(answer) && answer[0].content->empty());
}

void require_answers(const JsonLine& line, const PreferencePair& pair) {
  if (std::ranges::equal(pair.chosen, pair.rejected, is_same)) {
    line.fail("\"chosen\" and \"rejected\" are the same: there is nothing to prefer");
  }
  for (const auto& [name, answer] :
       {std::pair{"chosen", &pair.chosen}, std::pair{"rejected", &pair.rejected}}) {
    if (!is_empty(*answer)) continue;
    line.fail(std::string("\"") + name + "\" has no answer behind the prompt");
  }
}

}  // namespace

PreferencePair split_pair(const JsonLine& line, std::optional<Messages> prompt, Messages chosen,
                          Messages rejected) {
  const bool texts = is_text(chosen);
  if (texts != is_text(rejected)) {
    line.fail("of \"chosen\" and \"rejected\" one is a text and one a list of messages");
  }
  if (texts && prompt && !is_text(*prompt)) {
    line.fail("\"prompt\" is a list of messages, and \"chosen\" and \"rejected\" are texts");
  }
  const auto split = [&]() -> PreferencePair {
    if (!prompt && texts) return split_texts(chosen, rejected);
    if (!texts && (!prompt || is_text(*prompt))) {
      return split_lists(num_same(chosen, rejected), chosen, rejected);
    }
    if (!texts && begins_with(chosen, *prompt) && begins_with(rejected, *prompt)) {
      return split_lists(prompt->size(), chosen, rejected);
    }
    return {*std::move(prompt), std::move(chosen), std::move(rejected)};
  };
  PreferencePair out = split();
  if (is_text(out.prompt) && is_empty(out.prompt)) out.prompt.clear();
  require_answers(line, out);
  return out;
}

}  // namespace troupe
