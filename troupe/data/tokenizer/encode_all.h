// Many texts over many threads.
#pragma once

#include <string_view>
#include <vector>

#include "troupe/core/device/pool.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

// The ids of each text, whatever the pool. Long and short texts share the threads evenly: they are
// dealt out by bytes.
std::vector<std::vector<TokenId>> encode_all(const Tokenizer& tokenizer,
                                             const std::vector<std::string_view>& texts,
                                             const Pool& pool, const EncodeOptions& options = {});

}  // namespace troupe
