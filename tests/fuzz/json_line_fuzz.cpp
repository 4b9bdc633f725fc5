// Any bytes as a line of a JSONL corpus: a document, or a fault with its place.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/data/text/documents.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto encode = [](std::string_view part, std::vector<int32_t>& ids) {
    ids.insert(ids.end(), part.begin(), part.end());
  };
  for (const auto format : {troupe::CorpusFormat::kJsonl, troupe::CorpusFormat::kChat}) {
    troupe::EncodedDocuments out;
    try {
      troupe::add_document(text, {.format = format, .key = "text"}, encode, out);
    } catch (const std::string&) {
    }
  }
  return 0;
}
