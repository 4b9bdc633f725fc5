// What a model's folder holds besides weights and config.json, for people and for other programs:
// its tokenizer, its chat template and how it generates. Kept at import and published by an export,
// byte for byte.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace troupe {

using NamedTexts = std::vector<std::pair<std::string, std::string>>;  // (name, text)

// What other programs look for beside a tokenizer.
inline constexpr const char* kBesideTokenizer[] = {"tokenizer_config.json",
                                                   "special_tokens_map.json", "chat_template.jinja",
                                                   "generation_config.json"};

// Of a folder those that are there, or the one file of a tokenizer, under the name that readers
// look for; none where `from` is empty. One Error for all that is wrong: a link that leaves the
// folder (core/file/hub_file.h), a file that cannot be read or is too large to be one of these.
NamedTexts tokenizer_files(const std::string& from);

}  // namespace troupe
