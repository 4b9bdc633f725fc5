#!/usr/bin/env python3
"""Writes troupe/data/tokenizer/unicode_ranges.h: the code points that Hugging Face's tokenizers (their
regular expressions know Unicode 16) give a category, and Unicode 14, which this Python must have (3.11)
and which PCRE2 10.42 has, does not. Run it again when the pinned tokenizers move on."""
import pathlib
import unicodedata

from tokenizers import Regex, pre_tokenizers

CATEGORIES = ("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Pc Pd Ps Pe Pi Pf Po Sm Sc Sk So Zs Zl Zp Cc Cf").split()
OUT = pathlib.Path(__file__).parents[1] / "troupe/data/tokenizer/unicode_ranges.h"
HEAD = """// Written by tools/unicode_ranges.py: what Unicode 15, 15.1 and 16 added to Unicode 14.
#pragma once

#include <array>
#include <string_view>

namespace troupe {

struct NewRange {
  char32_t first, last;
  std::string_view category;
};

// clang-format off
inline constexpr std::array<NewRange, %d> kNewRanges = {{
"""


def ranges():
    assert unicodedata.unidata_version == "14.0.0", unicodedata.unidata_version
    text = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    found = []
    for name in CATEGORIES:
        only = pre_tokenizers.Split(Regex(rf"\p{{{name}}}"), "removed", invert=True)
        found += [(ord(c), name) for c, _ in only.pre_tokenize_str(text)
                  if unicodedata.category(c) == "Cn"]
    out = []
    for code, name in sorted(found):
        if out and out[-1][1] == code - 1 and out[-1][2] == name:
            out[-1][1] = code
        else:
            out.append([code, code, name])
    return out


if __name__ == "__main__":
    made = ranges()
    lines = [f'{{0x{a:X}, 0x{b:X}, "{name}"}},' for a, b, name in made]
    rows = ["    " + " ".join(lines[i:i + 3]) for i in range(0, len(lines), 3)]
    OUT.write_text(HEAD % len(made) + "\n".join(rows) +
                   "\n}};\n// clang-format on\n\n}  // namespace troupe\n")
