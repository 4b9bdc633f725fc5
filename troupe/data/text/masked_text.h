// A text of which a part is learned, as ids with weights.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "troupe/data/text/chat_renderer.h"
#include "troupe/data/text/documents.h"

namespace troupe {

// For each id the text that it adds to the decoded whole; empty where a character goes on in the
// next id. Several threads call it at once.
using Spell = std::function<std::vector<std::string>(std::span<const int32_t> ids)>;

// Appends the ids of the whole text, encoded at once, and their weights: 1 for each id that holds a
// byte of what is learned. Throws std::string where the tokenizer changes the text so much that no
// id's place in it is known.
void add_masked(const RenderedChat& chat, const Encode& encode, const Spell& spell,
                EncodedDocuments& out);

}  // namespace troupe
