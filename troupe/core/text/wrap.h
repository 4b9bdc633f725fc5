// Long lines broken at spaces, for a terminal, which breaks them in the middle of a word.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

// `text` in lines of at most `columns`, of which the first `indent` are taken: by what is printed
// before the first line, by spaces in those that follow.
//   12:30:01.250 info batch 8 sequences of 32 = 1 x micro batch 8 (chosen: at
//                     most 8192 tokens)
// A word that does not fit stays whole, and so does a command ("...: troupe train run.yaml") up to
// the end of its line: what is copied from a terminal must run. Lines of `text` stay lines. Where
// there is little room beside the indent nothing is broken.
std::string wrapped(std::string_view text, int columns, int indent);

}  // namespace troupe
