#include "troupe/train/run/kept_tokenizer.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <span>
#include <sstream>
#include <utility>
#include <vector>

#include "troupe/checkpoint/hf/tokenizer_files.h"
#include "troupe/core/check.h"
#include "troupe/core/config/config.h"
#include "troupe/core/config/json.h"
#include "troupe/core/file/file.h"
#include "troupe/core/file/hash.h"
#include "troupe/core/file/hub_file.h"
#include "troupe/data/tokenizer/tokenizers.h"

namespace troupe {
namespace {

namespace stdfs = std::filesystem;

struct KeptFile {
  std::string name, hash;
  static void visit(auto& c, auto&& f) {
    f("name", c.name);
    f("hash", c.hash);
  }
};

struct KeptTokenizer {
  std::string named, fingerprint;
  std::vector<KeptFile> files = {};
  static void visit(auto& c, auto&& f) {
    f("named", c.named);
    f("fingerprint", c.fingerprint);
    f("files", c.files);
  }
};

std::string kept_folder(const std::string& run) {
  return run + "/tokenizer";
}

std::string hash_of(const std::string& text) {
  return hex(hash128(std::as_bytes(std::span(text))));
}

std::optional<KeptTokenizer> read_kept(const std::string& run) {
  const std::string path = kept_folder(run) + "/kept.json";
  if (!is_there(path)) return std::nullopt;
  constexpr int64_t kMostBytes = 1 << 16;
  KeptTokenizer out;
  read_config(parse_json(read_file(path, Code::kUnreadableData, kMostBytes), path), out);
  return out;
}

void require_unchanged(const std::string& run, const KeptTokenizer& kept) {
  for (const KeptFile& file : kept.files) {
    const std::string path = kept_folder(run) + '/' + file.name;
    if (hash_of(read_file(path, Code::kUnreadableData, kLongestTokenizerFile)) == file.hash) {
      continue;
    }
    fail(Code::kBadTokenizer, path,
         "is not the file that the run kept at its start: copy it anew from the run's folder, or "
         "set data.tokenizer to the tokenizer");
  }
}

bool is_kept(const std::string& run, const KeptTokenizer& wanted) {
  try {
    const std::optional<KeptTokenizer> kept = read_kept(run);
    if (!kept || kept->named != wanted.named || kept->fingerprint != wanted.fingerprint) {
      return false;
    }
    require_unchanged(run, *kept);
    return true;
  } catch (const Error&) {
    return false;  // it is made anew
  }
}

// Adds what lies beside the tokenizer (kBesideTokenizer), where the tokenizer has its usual name.
std::vector<TokenizerFile> with_companions(const std::string& named,
                                           std::vector<TokenizerFile> files) {
  const bool folder = file_kind(named) == FileKind::kFolder;
  const stdfs::path path(named);
  if (!folder && path.filename() != files[0].name) return files;
  const stdfs::path home = folder ? path : path.parent_path();
  for (const char* name : kBesideTokenizer) {
    const std::string companion = (home / name).string();
    const bool listed = std::ranges::any_of(files, [&](const auto& f) { return f.name == name; });
    if (!listed && is_there(companion)) files.push_back({companion, name});
  }
  return files;
}

// Empty: it can be. What the recipe names itself may be a link to anywhere.
std::string why_not_kept(const std::string& target, const std::vector<TokenizerFile>& files,
                         const std::string& named) {
  for (const TokenizerFile& file : files) {
    const std::string home = stdfs::path(file.path).parent_path().string();
    if (file.path == named || !leaves_hub_folder(file.path, home.empty() ? "." : home)) continue;
    return file.path + " is a link that leaves its folder";
  }
  if (!is_there(target) || is_there(target + "/kept.json")) return {};
  return target + " is no copy that a run kept, and stays as it is";
}

// Into a staging folder, with kept.json.
void copy_files(Fs& fs, const std::string& staging, const std::vector<TokenizerFile>& files,
                KeptTokenizer kept) {
  const auto write = [&](const std::string& name, const std::string& text) {
    NewFile file(fs, staging + '/' + name);
    file.write(text);
    file.finish();
  };
  for (const TokenizerFile& file : files) {
    const std::string text = read_file(file.path, Code::kUnreadableData, kLongestTokenizerFile);
    write(file.name, text);
    kept.files.push_back({file.name, hash_of(text)});
  }
  std::ostringstream text;
  write_json(text, kept);
  write("kept.json", text.str() + '\n');
}

}  // namespace

void keep_tokenizer(Fs& fs, const std::string& run, const std::string& named,
                    const Tokenizer& tokenizer, const Log& log) {
  std::vector<TokenizerFile> files = files_of_tokenizer(named);
  if (files.empty()) return;
  const KeptTokenizer kept{.named = named, .fingerprint = hex(tokenizer.fingerprint())};
  if (is_kept(run, kept)) return;
  files = with_companions(named, std::move(files));
  const std::string target = kept_folder(run), why = why_not_kept(target, files, named);
  if (!why.empty()) {
    log.warning("tokenizer: " + why + ": the run folder keeps no copy, and needs it at " + named);
    return;
  }
  const std::string staging = make_staging_directory(fs, target);
  copy_files(fs, staging, files, kept);
  if (!is_there(target)) return publish_directory(fs, staging, target);
  log.info("tokenizer: " + target + " is made anew, of " + named);
  replace_directory(fs, staging, target);
}

std::string run_tokenizer(const std::string& run, const std::string& named) {
  if (named.empty()) return named;
  const std::optional<KeptTokenizer> kept = read_kept(run);
  if (kept && kept->named == named) {
    require_unchanged(run, *kept);
    return kept_folder(run);
  }
  const std::string imported = run + "/hf";
  const bool of_import = stdfs::path(named).filename() == "hf" && is_there(imported);
  return of_import ? imported : named;
}

}  // namespace troupe
