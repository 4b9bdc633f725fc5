// The one file that knows yaml-cpp.
#include "troupe/core/config/yaml.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <map>
#include <sstream>
#include <string_view>

#include "troupe/core/check.h"
#include "troupe/core/config/yaml_builder.h"
#include "troupe/core/file/file.h"

namespace troupe {
namespace {

constexpr int64_t kMaxBytes = 4 << 20;
constexpr detail::YamlBuilder::Limits kLimits = {.depth = 64,
                                                 .values = 20000,
                                                 .bytes = 2 * kMaxBytes,
                                                 .malformed = Code::kBadSyntax,
                                                 .written_twice = Code::kWrittenTwice};

Where place(const std::string& file, const YAML::Mark& mark) {
  return {file, mark.is_null() ? 0 : mark.line + 1};
}

using Extent = detail::YamlExtent;

Extent extent(const Yaml& y) {
  Extent out;
  const auto include = [&](const Yaml& child) {
    const Extent inner = extent(child);
    out.depth = std::max(out.depth, inner.depth + 1);
    out.values += inner.values;
    out.bytes += inner.bytes + child.text.size();
  };
  for (const Yaml& item : y.items) include(item);
  for (const Yaml::Field& field : y.fields) {
    include(field.value);
    ++out.values;
    out.bytes += field.name.size();
  }
  return out;
}

// Takes the parser's events and not its tree, which is built without limits.
class YamlEvents : public YAML::EventHandler {
 public:
  explicit YamlEvents(const std::string& file) : file_(file) {}

  Yaml take() { return builder_.take(); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ == 1) return;
    fail(Code::kBadSyntax, to_text(place(file_, mark)),
         "a second YAML document begins here; a file holds one");
  }
  void OnDocumentEnd() override {}

  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    add(detail::null_value(place(file_, mark)), anchor);
  }
  void OnScalar(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                const std::string& text) override {
    add(detail::scalar_value(place(file_, mark), text), anchor);
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(Yaml::Kind::kList, mark, anchor);
  }
  void OnMapStart(const YAML::Mark& mark, const std::string&, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(Yaml::Kind::kMap, mark, anchor);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapEnd() override { close(); }

  // An alias costs a letter and stands for a whole tree.
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    const auto target = anchored_.find(anchor);
    if (target == anchored_.end()) {
      fail(Code::kBadSyntax, to_text(place(file_, mark)), "an alias to a value that contains it");
    }
    builder_.add(target->second, extent(target->second));
  }

 private:
  void add(Yaml value, YAML::anchor_t anchor) {
    if (anchor != YAML::NullAnchor) anchored_[anchor] = value;
    builder_.add(std::move(value));
  }
  void open(Yaml::Kind kind, const YAML::Mark& mark, YAML::anchor_t anchor) {
    builder_.open(kind, place(file_, mark));
    anchors_.push_back(anchor);
  }
  void close() {
    const YAML::anchor_t anchor = anchors_.back();
    anchors_.pop_back();
    add(builder_.close(), anchor);
  }

  const std::string& file_;
  detail::YamlBuilder builder_{kLimits};
  std::vector<YAML::anchor_t> anchors_;  // of what is open
  std::map<YAML::anchor_t, Yaml> anchored_;
  int documents_ = 0;
};

constexpr size_t kEnough = 80;  // bytes of a line that is shown

// Where a line up to `last` (from 0) is indented with a tab.
void refuse_tabs(const std::string& text, const std::string& file, int last) {
  std::istringstream in(text);
  std::string line;
  for (int i = 0; i <= last && std::getline(in, line); ++i) {
    const size_t end = line.find_first_not_of(" \t\r"), tab = line.find('\t');
    if (end == std::string::npos || line[end] == '#' || tab > end) continue;
    const std::string where = to_text(Where{file, i + 1}) + ':' + std::to_string(tab + 1);
    fail(Code::kBadSyntax, where,
         "the line is indented with a tab, and YAML takes spaces alone: \"" +
             line.substr(0, kEnough) + '"');
  }
}

[[noreturn]] void fail_syntax(const std::string& text, const std::string& file,
                              const YAML::Exception& e) {
  if (e.mark.is_null()) fail(Code::kBadSyntax, file, e.msg);
  refuse_tabs(text, file, e.mark.line);
  std::istringstream in(text);
  std::string line;
  for (int i = 0; i <= e.mark.line; ++i) {
    if (std::getline(in, line)) continue;
    fail(Code::kBadSyntax, to_text(Where{file, i}),
         "a quote or a bracket is still open at the end");
  }
  const std::string where = to_text(place(file, e.mark)) + ':' + std::to_string(e.mark.column + 1);
  fail(Code::kBadSyntax, where, e.msg + ": \"" + line.substr(0, kEnough) + '"');
}

// Text of Windows' "Unicode" has a mark at its beginning, or a zero byte in each character.
void require_utf8_bytes(const std::string& text, const std::string& file) {
  const std::string_view head = std::string_view(text).substr(0, 2);
  const bool marked = head == "\xFF\xFE" || head == "\xFE\xFF";
  const bool zeros = head.size() == 2 && (head[0] == '\0') != (head[1] == '\0');
  if (!marked && !zeros) return;
  fail(Code::kBadSyntax, file,
       "is UTF-16, and UTF-8 is expected: save it as UTF-8, or iconv -f UTF-16 -t UTF-8");
}

}  // namespace

std::string to_text(const Where& where) {
  return where.line == 0 ? where.file : where.file + ":" + std::to_string(where.line);
}

Yaml parse_yaml(const std::string& text, const std::string& file) {
  require_utf8_bytes(text, file);
  if (text.size() > size_t{kMaxBytes}) {
    fail(Code::kBadSyntax, file, "has", text.size(), "bytes, more than", kMaxBytes);
  }
  try {
    // The mark of the document's end: without it yaml-cpp 0.7 lets a quote stay open.
    std::istringstream in(text + "\n...\n");
    YAML::Parser parser(in);
    YamlEvents events(file);
    while (parser.HandleNextDocument(events)) {
    }
    Yaml out = events.take();
    if (out.where.file.empty()) out.where = {file};  // no document at all
    return out;
  } catch (const YAML::Exception& e) {
    fail_syntax(text, file, e);
  }
}

Yaml load_yaml(const std::string& path) {
  return parse_yaml(read_file(path, Code::kNoRecipe, kMaxBytes), path);
}

}  // namespace troupe
