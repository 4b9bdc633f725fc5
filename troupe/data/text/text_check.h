// Whether a file is text, by how it begins.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe {

inline constexpr size_t kCheckedBytes = size_t{16} << 10;  // of a file are looked at

// Why a file that begins so is no text that a tokenizer takes, with what to do: "is a PNG image:
// leave it out". Empty: it is text, UTF-8 or for the most part so: some bytes that are not, as of
// Latin-1, and single NULs are for the tokenizer to take and for the caller to count. `head` is the
// whole file, or its first kCheckedBytes or more.
std::string why_not_text(std::string_view head);

}  // namespace troupe
