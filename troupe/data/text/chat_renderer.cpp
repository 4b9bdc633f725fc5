#include "troupe/data/text/chat_renderer.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/python_program.h"
#include "troupe/data/text/chat_script.h"
#include "troupe/data/text/json_line.h"

namespace troupe {
namespace {

std::string json_of(const ChatMessage& message) {
  if (!message.json.empty()) return message.json;
  return "{\"role\":" + to_text(message.role) +
         ",\"content\":" + (message.content ? to_text(*message.content) : "null") + '}';
}

const char* word_of(Wanted wanted) {
  switch (wanted) {
    case Wanted::kMasked: return "masked";
    case Wanted::kAnswer: return "answer";
    case Wanted::kPrompt: return "prompt";
    case Wanted::kClose: return "close";
  }
  return "";
}

std::vector<ByteSpan> spans_of(JsonLine& line) {
  std::vector<size_t> bounds;
  line.array([&] {
    const size_t begin = line.place();
    line.skip();
    bounds.push_back(std::stoull(std::string(line.since(begin))));
  });
  std::vector<ByteSpan> out;
  for (size_t i = 0; i + 1 < bounds.size(); i += 2) out.push_back({bounds[i], bounds[i + 1]});
  return out;
}

}  // namespace

std::string chat_request(const ChatRow& row, Wanted wanted) {
  std::string out = std::string("{\"want\":\"") + word_of(wanted) + "\",\"messages\":[";
  const char* separator = "";
  for (const ChatMessage& message : row.messages) {
    out.append(std::exchange(separator, ",")).append(json_of(message));
  }
  out.append("],\"asked\":").append(std::to_string(row.answer.value_or(0)));
  out.append(",\"tools\":").append(row.tools.empty() ? "null" : row.tools);
  out.append(",\"settings\":").append(row.settings.empty() ? "null" : row.settings);
  out += '}';
  std::ranges::replace(out, '\n', ' ');  // between values: a string of JSON holds none
  return out;
}

ChatRenderers::ChatRenderers(ModelTemplate form) : form_(std::move(form)) {
  idle_.push_back(start());
}

void ChatRenderers::fail_of(ChildOutput& child) const {
  const ChildEnd end = child.wait();
  if (end.never_began) {
    fail(Code::kUnreadableData, form_.file,
         "is a Jinja template, which Python's jinja2 renders, and", python_program(),
         "does not start:", end.said, "; install it, or name one that has jinja2 in TROUPE_PYTHON");
  }
  fail(Code::kUnreadableData, form_.file, end.ok ? "its renderer ended early" : end.said);
}

ChatRenderers::Child ChatRenderers::start() const {
  auto out = std::make_unique<ChildOutput>(
      std::vector<std::string>{python_program(), "-X", "utf8", "-c", kChatScript},
      ChildInput::kSent);
  std::ostringstream form;
  write_json(form, form_);
  if (!out->send(form.str() + '\n') || out->line() != "ready") fail_of(*out);
  return out;
}

RenderedChat ChatRenderers::read_one(ChildOutput& child) const {
  const std::optional<std::string> text = child.line();
  if (!text) fail_of(child);
  RenderedChat out;
  JsonLine line(*text);
  line.object([&](std::string_view name) {
    if (name == "text") {
      out.text = line.string();
    } else if (name == "learned") {
      out.learned = spans_of(line);
    } else if (name == "fault") {
      out.fault = line.string();
    } else {
      line.skip();
    }
  });
  return out;
}

std::vector<RenderedChat> ChatRenderers::render(const std::vector<std::string>& requests) {
  std::vector<RenderedChat> out;
  if (requests.empty()) return out;
  Child child;
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      child = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!child) child = start();
  std::string batch = std::to_string(requests.size()) + '\n';
  for (const std::string& request : requests) batch += request + '\n';
  if (!child->send(batch)) fail_of(*child);
  for (size_t i = 0; i < requests.size(); ++i) out.push_back(read_one(*child));
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(child));
  return out;
}

}  // namespace troupe
