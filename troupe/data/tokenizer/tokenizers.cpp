#include "troupe/data/tokenizer/tokenizers.h"

#include <filesystem>

#include "troupe/core/check.h"
#include "troupe/core/file/file.h"
#include "troupe/data/tokenizer/bytes.h"
#include "troupe/data/tokenizer/sentencepiece.h"
#include "troupe/data/tokenizer/tiktoken.h"
#include "troupe/data/tokenizer/tokenizer_json.h"

namespace troupe {
namespace {

bool is_folder(const std::string& path) {
  return file_kind(path) == FileKind::kFolder;
}

// The first bytes of a file; "" where it is none.
std::string head_of(const std::string& path) {
  if (file_kind(path) != FileKind::kFile) return {};
  const InputFile file(path);
  std::string head(static_cast<size_t>(std::min<int64_t>(file.size(), 512)), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  return head;
}

bool is_json(const std::string& path) {
  const std::string head = head_of(path);
  const size_t first = head.find_first_not_of(" \t\r\n");
  return first != std::string::npos && head[first] == '{';
}

// A folder's tokenizer.json counts before its older forms.
std::string json_of(const std::string& name) {
  return is_folder(name) ? name + "/tokenizer.json" : name;
}
std::string model_of(const std::string& name) {
  return is_folder(name) ? name + "/tokenizer.model" : name;
}

// A folder's ranks: tokenizer.model (as Llama 3 has it), or its one .tiktoken file.
std::string ranks_of(const std::string& name) {
  if (!is_folder(name) || is_there(model_of(name))) return model_of(name);
  std::string found;
  for (const std::string& entry : names_in(name)) {
    if (!entry.ends_with(".tiktoken")) continue;
    if (!found.empty()) {
      fail(Code::kNoTokenizer, name, "has more than one .tiktoken file; name the one to use");
    }
    found = name + '/' + entry;
  }
  return found;
}

std::string vocab_of(const std::string& name) {
  return is_folder(name) ? name + "/vocab.json" : name;
}
std::string merges_of(const std::string& name) {
  return (std::filesystem::path(vocab_of(name)).parent_path() / "merges.txt").string();
}

bool is_gpt2(const std::string& name) {
  return std::filesystem::path(vocab_of(name)).filename() == "vocab.json" &&
         is_json(vocab_of(name)) && is_there(merges_of(name));
}

// A message's first field of the pieces: tag 1, bytes.
bool is_sentencepiece(const std::string& name) {
  return head_of(model_of(name)).starts_with('\n') && !looks_like_tiktoken(head_of(model_of(name)));
}

bool is_tiktoken(const std::string& name) {
  return looks_like_tiktoken(head_of(ranks_of(name)));
}

using Files = std::vector<TokenizerFile>;

Files no_files(const std::string& /*word*/) {
  return {};
}

}  // namespace

const std::vector<TokenizerKind>& tokenizer_kinds() {
  static const std::vector<TokenizerKind> kinds = {
      {"bytes", "the word bytes: 256 ids, no file",
       [](const std::string& name) { return name == "bytes"; },
       [](const std::string&) { return make_bytes_tokenizer(); }, no_files},
      {"null", "null:N: text that is ids already",
       [](const std::string& name) { return name == "null" || name.starts_with("null:"); },
       make_null_tokenizer, no_files},
      {"gpt2", "vocab.json with merges.txt beside it",
       [](const std::string& name) {
         return !is_json(json_of(name)) ? is_gpt2(name) : !is_folder(name) && is_gpt2(name);
       },
       [](const std::string& name) { return open_gpt2_files(vocab_of(name), merges_of(name)); },
       [](const std::string& name) {
         return Files{{vocab_of(name), "vocab.json"}, {merges_of(name), "merges.txt"}};
       }},
      {"tokenizer.json", "a file of Hugging Face's tokenizers",
       [](const std::string& name) { return is_json(json_of(name)); },
       [](const std::string& name) { return open_tokenizer_json(json_of(name)); },
       [](const std::string& name) {
         Files out = {{json_of(name), "tokenizer.json"}};
         const std::string config = tokenizer_config_beside(json_of(name));
         if (!config.empty()) out.push_back({config, "tokenizer_config.json"});
         return out;
       }},
      {"sentencepiece", "a .model of SentencePiece", is_sentencepiece,
       [](const std::string& name) { return open_sentencepiece(model_of(name)); },
       [](const std::string& name) {
         return Files{{model_of(name), "tokenizer.model"}};
       }},
      {"tiktoken", "a file of ranks, as tiktoken has them", is_tiktoken,
       [](const std::string& name) { return open_tiktoken(ranks_of(name)); },
       [](const std::string& name) {
         return Files{{ranks_of(name), "tokenizer.model"}};
       }},
  };
  return kinds;
}

std::vector<TokenizerFile> files_of_tokenizer(const std::string& name) {
  for (const TokenizerKind& kind : tokenizer_kinds()) {
    if (kind.fits(name)) return kind.files(name);
  }
  return {};
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  for (const TokenizerKind& kind : tokenizer_kinds()) {
    if (kind.fits(name)) return kind.open(name);
  }
  if (!is_folder(name)) const InputFile readable(name);  // says why it is not
  std::string known;
  for (const TokenizerKind& kind : tokenizer_kinds()) {
    known += (known.empty() ? "" : "; ") + std::string(kind.what);
  }
  fail(Code::kNoTokenizer, name, "holds no tokenizer. There are:", known);
}

}  // namespace troupe
