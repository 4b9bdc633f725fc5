// The well-known patterns as hand-written scanners: the same pieces as PCRE2 finds (splitter_test
// compares them on random text), several times as fast.
#pragma once

#include <string_view>
#include <vector>

#include "troupe/data/tokenizer/pre_tokenizer.h"

namespace troupe {

// Adds the pieces of text[cut] to `out`. The patterns leave nothing between their matches.
using Splitter = void (*)(std::string_view text, const Cut& cut, std::vector<Cut>& out);

// nullptr: the pattern has none.
Splitter splitter_of(std::string_view pattern);

}  // namespace troupe
