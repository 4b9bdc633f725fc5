#include "troupe/data/build/encode_corpus.h"

#include <algorithm>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/text/utf8.h"
#include "troupe/data/build/ordered_workers.h"
#include "troupe/data/text/chat_line.h"
#include "troupe/data/text/json_line.h"

namespace troupe {

std::string settled_key(const std::string& key, CorpusFormat format) {
  return key.empty() && format != CorpusFormat::kChat ? "text" : key;
}

std::string FirstChat::text() const {
  std::string out = place;
  out.append(": layout ").append(to_text(layout)).append(", by ").append(keys_of(layout));
  return out.append(" (--layout names another)");
}

namespace {

// Where document `number` of a piece is, for messages.
std::string place_of(const CorpusPiece& piece, int64_t number) {
  if (piece.format == CorpusFormat::kText) return piece.path;
  return piece.path + (piece.is_table ? ": row " : ":") + std::to_string(number);
}

// Calls f(text, number) for each document of a piece: its lines that are not empty, or the whole.
void each_document(const CorpusPiece& piece,
                   const std::function<void(std::string_view text, int64_t number)>& f) {
  std::string_view text = piece.text;
  int64_t number = piece.first_line;
  if (piece.is_first) text = without_byte_order_mark(text);
  if (piece.format == CorpusFormat::kText || piece.long_line) return f(text, number);
  for (; !text.empty(); ++number) {
    const size_t end = std::min(text.find('\n'), text.size());
    std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.find_first_not_of(" \t") != std::string_view::npos) f(line, number);
  }
}

// What the template writes for the chats of each line of a piece. A line has none where add_document refuses it,
// or where it is a prompt and a completion without marks.
using RenderedLines = std::map<int64_t, std::vector<RenderedChat>>;

// How a text that a template wrote becomes ids.
struct ChatTexts {
  const Encode& encode;
  const Spell& spell;
};

// The chats of a line that a template writes; none where it is texts without marks.
std::vector<ChatRow> marked_chats(std::string_view text, const DocumentRules& rules) {
  std::vector<ChatRow> rows = chats_of(text, rules);
  for (const ChatRow& row : rows) {
    const auto marked = std::ranges::count(row.messages, true, &ChatMessage::has_marks);
    if (marked == 0 && !row.messages.empty()) return {};
    if (marked < std::ssize(row.messages)) {
      RenderedChat refused;
      refused.fault = "of prompt and completion one is a text and one a list of messages";
      throw refused;
    }
  }
  return rows;
}

RenderedLines render_lines(const CorpusPiece& piece, const DocumentRules& rules, int64_t longest,
                           ChatRenderers& renderers) {
  RenderedLines out;
  std::vector<std::string> requests;
  std::vector<int64_t> numbers;
  if (piece.long_line) return out;
  each_document(piece, [&](std::string_view text, int64_t number) {
    if (std::ssize(text) > longest) return;
    try {
      for (const ChatRow& row : marked_chats(text, rules)) {
        requests.push_back(chat_request(row, row.answer ? Wanted::kAnswer : Wanted::kMasked));
        numbers.push_back(number);
      }
    } catch (const RenderedChat& refused) {
      out[number].push_back(refused);
    } catch (const JsonFault&) {  // add_document says it
    } catch (const std::string&) {
    }
  });
  std::vector<RenderedChat> rendered = renderers.render(requests);
  for (size_t i = 0; i < numbers.size(); ++i) out[numbers[i]].push_back(std::move(rendered[i]));
  return out;
}

void add_rendered(std::string_view text, const std::vector<RenderedChat>& chats,
                  const DocumentRules& rules, const ChatTexts& how, EncodedDocuments& out) {
  const auto add = [&](size_t i) {
    if (!chats[i].fault.empty()) throw chats[i].fault;
    add_masked(chats[i], how.encode, how.spell, out);
  };
  add_documents(text, rules, chats.size(), add, out);
}

}  // namespace

EncodedPiece encode_piece(const CorpusPiece& piece, const DocumentRules& rules,
                          const Encode& encode, int64_t longest, const ChatWriter* chats) {
  EncodedPiece out{.next = piece.next, .text_bytes = std::ssize(piece.text)};
  DocumentRules here = rules;
  here.format = piece.format;
  RenderedLines rendered;
  if (chats) rendered = render_lines(piece, rules, longest, chats->renderers);
  each_document(piece, [&](std::string_view text, int64_t number) {
    const std::string place = place_of(piece, number);
    const auto too_long = [&](int64_t bytes) {
      out.bad.push_back({place, "has " + std::to_string(bytes) + " bytes, more than `longest`, " +
                                    std::to_string(longest)});
    };
    if (piece.long_line) return too_long(*piece.long_line);
    if (std::ssize(text) > longest) return too_long(std::ssize(text));
    if (!is_utf8(text) && out.not_utf8++ == 0) out.first_not_utf8 = place;
    try {
      const auto chat = rendered.find(number);
      if (chat != rendered.end()) {
        add_rendered(text, chat->second, here, {encode, chats->spell}, out.documents);
      } else {
        add_document(text, here, encode, out.documents);
      }
    } catch (const std::string& what) {
      out.bad.push_back({place, what});
    }
  });
  return out;
}

std::optional<FirstChat> first_chat(const std::vector<std::string>& files,
                                    const DocumentRules& rules, int64_t longest) {
  if (rules.format != CorpusFormat::kChat || !rules.key.empty()) return std::nullopt;
  CorpusReader reader(files, {.format = rules.format, .key = rules.key, .longest = longest});
  std::optional<FirstChat> out;
  while (const auto piece = out ? std::nullopt : reader.next()) {
    if (piece->long_line) continue;
    each_document(*piece, [&](std::string_view text, int64_t number) {
      if (out || std::ssize(text) > longest) return;
      try {
        const ChatLayout layout = read_chat(text, {.layout = rules.layout}).layout;
        out = {.place = place_of(*piece, number), .layout = layout};
      } catch (const JsonFault&) {  // who encodes it says what is wrong
      }
    });
  }
  return out;
}

bool holds_pairs(const std::optional<FirstChat>& first, ChatLayout asked) {
  return (first ? first->layout : asked) == ChatLayout::kPreference;
}

void require_workers(int workers) {
  constexpr int kMost = 1024;
  if (0 <= workers && workers <= kMost) return;
  fail(Code::kBadValue, "workers", workers, "is not between 0, one for each core, and", kMost);
}

void encode_corpus(CorpusReader& reader, const EncodeJob& job,
                   const std::function<void(const EncodedPiece&)>& f) {
  require_workers(job.workers);
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int threads = std::max(1, job.workers > 0 ? job.workers : cores);
  OrderedWorkers<EncodedPiece> workers(threads);
  if (workers.threads() < threads) {
    job.log.warning("workers: the system started " + std::to_string(workers.threads()) + " of " +
                    std::to_string(threads) +
                    " threads, and they do all the work: its limit is `ulimit -u`, or pids.max of "
                    "the control group");
  }
  bool more = true;
  while (more || workers.pending() > 0) {
    if (more && workers.pending() < 2 * static_cast<size_t>(threads)) {
      std::optional<CorpusPiece> piece = reader.next();
      more = piece.has_value();
      if (!more) continue;
      workers.add([&job, p = std::make_shared<CorpusPiece>(std::move(*piece))] {
        return encode_piece(*p, job.rules, job.encode, job.longest, job.chats);
      });
      continue;
    }
    f(workers.take());
  }
}

}  // namespace troupe
