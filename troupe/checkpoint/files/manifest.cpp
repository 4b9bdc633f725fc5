#include "troupe/checkpoint/files/manifest.h"

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "troupe/core/check.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/text/suggest.h"
#include "troupe/core/version.h"

namespace troupe {
namespace {

constexpr int64_t kMaxManifest = int64_t{64} << 20;  // bytes
constexpr std::string_view kHead = "{\"checksum\":\"", kZeros = "0000000000000000";

struct Item {
  std::string name, value;
  static void visit(auto& i, auto&& f) {
    f("name", i.name);
    f("value", i.value);
  }
};

// The manifest's fields except for `scalars`, which may be any object.
struct Fields {
  std::string checksum;
  int64_t format = 0;
  std::string version = "0.1.0";  // where it is not said
  std::string run;
  int64_t step = -1;
  bool bad = false;
  std::optional<double> score;
  std::vector<Item> fingerprint;
  std::optional<BaseCheckpoint> base;
  std::vector<ShardInfo> shards;

  static void visit(auto& m, auto&& f) {
    f("checksum", m.checksum);
    f("format", m.format);
    f("version", m.version);
    f("run", m.run);
    f("step", m.step);
    f("bad", m.bad);
    f("score", m.score);
    f("fingerprint", m.fingerprint);
    f("base", m.base);
    f("shards", m.shards);
  }
};

struct IndexLine {
  std::string name, dtype;
  Sizes global, offset, size;
  std::string hash;

  static void visit(auto& l, auto&& f) {
    f("name", l.name);
    f("dtype", l.dtype);
    f("global", l.global);
    f("offset", l.offset);
    f("size", l.size);
    f("hash", l.hash);
  }
};

template <Config C>
std::string json_of(const C& config) {
  std::ostringstream out;
  write_json(out, config);
  return out.str();
}

// read_config's faults are those of a recipe; here they are a checkpoint's.
template <Config C>
Sources read_as(const Yaml& y, C& out, const std::string& what) {
  try {
    return read_config(y, out);
  } catch (const Error& e) {
    fail(Code::kNoCheckpoint, y.where.file, "is not " + what + ":", e.what());
  }
}

// Where the text of the field `scalars` begins and ends; the parser has accepted the whole.
std::string extract_scalars(const std::string& text) {
  constexpr std::string_view kBegin = "\"scalars\":", kEnd = ",\n\"shards\":";
  const size_t begin = text.find(kBegin), end = text.rfind(kEnd);
  if (begin == std::string::npos || end == std::string::npos || begin > end) return {};
  return text.substr(begin + kBegin.size(), end - begin - kBegin.size());
}

void check_file_name(const std::string& name, const std::string& file) {
  if (!name.empty() && name.find_first_of("/\\") == std::string::npos &&
      name.find('\0') == std::string::npos && name != "." && name != "..") {
    return;
  }
  fail(Code::kNoCheckpoint, file, "names the file \"" + name + "\", which is no plain name");
}

// A checkpoint of another format may have other fields, so its number is asked for first.
void check_format(const Yaml& document) {
  std::string format, wrote = "?";
  for (const Yaml::Field& field : document.fields) {
    if (field.name == "format") format = field.value.text;
    if (field.name == "version") wrote = field.value.text;
  }
  int64_t number = 0;
  if (!from_text(format, number) || number <= kCheckpointFormat) return;
  fail(Code::kOtherFormat, document.where.file, "is of format", number, "made by Troupe",
       wrote + "; this is Troupe", version(), "which reads formats up to", kCheckpointFormat);
}

}  // namespace

std::string to_json(const Manifest& m) {
  TROUPE_CHECK(parse_json(m.scalars_text, "scalars").kind == Yaml::Kind::kMap,
               "the scalars must be one JSON object");
  std::string text =
      std::string(kHead) + std::string(kZeros) +
      "\",\n\"format\":" + std::to_string(std::max(m.format, m.base ? kCheckpointFormat : 1)) +
      ",\"version\":" + to_text(version()) + ",\"run\":" + to_text(m.run) +
      ",\"step\":" + std::to_string(m.step) + ",\"bad\":" + to_text(m.bad) +
      ",\"score\":" + (m.score ? to_text(*m.score) : "null") + ",\n\"fingerprint\":[";
  const char* separator = "";
  for (const auto& [name, value] : m.fingerprint) {
    text += std::exchange(separator, ",\n") + json_of(Item{name, value});
  }
  text += "],\n";
  if (m.base) text.append("\"base\":").append(json_of(*m.base)).append(",\n");
  text += "\"scalars\":" + m.scalars_text + ",\n\"shards\":[\n";
  separator = "";
  for (const ShardInfo& shard : m.shards) text += std::exchange(separator, ",\n") + json_of(shard);
  text += "]}\n";
  text.replace(kHead.size(), kZeros.size(), hex(hash64(text)));
  return text;
}

Manifest parse_manifest(const std::string& text, const std::string& file) {
  if (!text.starts_with(kHead)) {
    fail(Code::kNoCheckpoint, file, "is not a checkpoint's manifest: it does not begin with",
         std::string(kHead));
  }
  Yaml document = parse_json(text, file, Code::kNoCheckpoint);
  check_format(document);
  std::string zeroed = text;
  const std::string said = text.substr(kHead.size(), kZeros.size());
  zeroed.replace(kHead.size(), said.size(), kZeros);
  if (const std::string found = hex(hash64(zeroed)); found != said) {
    fail(Code::kDamagedCheckpoint, file, "is damaged: its checksum is", found, "and should be",
         said);
  }
  Manifest out;
  const auto scalars = std::ranges::find(document.fields, "scalars", &Yaml::Field::name);
  out.scalars_text = extract_scalars(text);
  if (scalars == document.fields.end() || scalars->value.kind != Yaml::Kind::kMap ||
      out.scalars_text.empty()) {
    fail(Code::kNoCheckpoint, file, "has no object \"scalars\"");
  }
  out.scalars = std::move(scalars->value);
  document.fields.erase(scalars);
  Fields fields;
  read_as(document, fields, "a checkpoint's manifest");
  if (fields.format < 1 || fields.step < 0) {
    fail(Code::kNoCheckpoint, file, "format", fields.format, "step", fields.step);
  }
  out.format = fields.format, out.version = fields.version, out.run = fields.run;
  out.step = fields.step, out.bad = fields.bad, out.score = fields.score;
  for (Item& item : fields.fingerprint) {
    out.fingerprint.emplace_back(std::move(item.name), std::move(item.value));
  }
  out.base = std::move(fields.base);
  out.shards = std::move(fields.shards);
  std::set<std::string_view>
      names;  // one named twice would be read, and its tensors counted, twice
  for (const ShardInfo& shard : out.shards) {
    for (const std::string* name : {&shard.file, &shard.index}) {
      check_file_name(*name, file);
      if (!names.insert(*name).second) fail(Code::kNoCheckpoint, file, "names", *name, "twice");
    }
  }
  return out;
}

Manifest read_manifest(const std::string& folder) {
  const std::string path = folder + '/' + kManifestName;
  return parse_manifest(read_file(path, Code::kNoCheckpoint, kMaxManifest), path);
}

void fail_missing_scalars(const std::string& folder, const std::vector<std::string>& missing) {
  fail(Code::kStateMismatch, folder + '/' + kManifestName, "lacks state of the run:",
       joined(std::vector<std::string_view>(missing.begin(), missing.end())),
       "(it does not begin anew by itself: that would repeat data)");
}

std::string to_json(const StoredTensor& stored) {
  const TensorBox& t = stored.tensor;
  return json_of(IndexLine{t.name, std::string(name_of(t.element)), t.box.global, t.box.offset,
                           t.box.size, stored.hash}) +
         '\n';
}

std::vector<StoredTensor> parse_index(const std::string& text, const std::string& file) {
  std::vector<StoredTensor> out;
  int64_t number = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    const std::string place = file + ':' + std::to_string(++number);
    IndexLine line;
    read_as(parse_json(text.substr(at, end - at), place, Code::kNoCheckpoint), line,
            "the index of a shard");
    // By assignment: of nested lists of vectors g++ 12 says, falsely, that one may be
    // uninitialized.
    StoredTensor tensor;
    tensor.tensor.name = line.name, tensor.hash = line.hash;
    tensor.tensor.box.global = line.global;
    tensor.tensor.box.offset = line.offset;
    tensor.tensor.box.size = line.size;
    if (!element_of(line.dtype, tensor.tensor.element)) {
      fail(Code::kNoCheckpoint, place, "unknown dtype", line.dtype);
    }
    int64_t bits = 0;  // of the whole tensor, which is computed with later
    const Box whole = Box::whole(line.global);
    if (!is_inside(tensor.tensor.box) ||
        __builtin_mul_overflow(whole.numel(), bits_of(tensor.tensor.element), &bits)) {
      fail(Code::kNoCheckpoint, place, "no such box: global", to_text(line.global), "offset",
           to_text(line.offset), "size", to_text(line.size));
    }
    out.push_back(std::move(tensor));
    at = end + 1;
  }
  return out;
}

std::string stored_name(const TensorBox& tensor) {
  if (tensor.box.is_whole()) return tensor.name;
  std::string out = tensor.name + '@';
  for (size_t d = 0; d < tensor.box.offset.size(); ++d) {
    out += (d ? "," : "") + std::to_string(tensor.box.offset[d]);
  }
  return out;
}

std::vector<std::string> changes(const Fingerprint& saved, const Fingerprint& now,
                                 const EarlierKeys& earlier) {
  const Fingerprint& defaults = earlier.defaults;
  std::vector<std::string> out;
  std::map<std::string, std::string> asked(now.begin(), now.end());
  for (const auto& [saved_name, value] : saved) {
    const auto renamed =
        std::ranges::find(earlier.renamed, saved_name, &Fingerprint::value_type::first);
    const std::string& name = renamed == earlier.renamed.end() ? saved_name : renamed->second;
    const auto other = asked.find(name);
    if (other == asked.end()) {
      out.push_back(name + ": " + value + " was saved, nothing is asked for");
    } else if (other->second != value) {
      out.push_back(name + ": " + value + " was saved, " + other->second + " is asked for");
    }
    if (other != asked.end()) asked.erase(other);
  }
  for (const auto& entry : now) {
    const auto& [name, value] = entry;
    if (asked.contains(name) && std::ranges::find(defaults, entry) == defaults.end()) {
      out.push_back(name + ": nothing was saved, " + value + " is asked for");
    }
  }
  return out;
}

}  // namespace troupe
