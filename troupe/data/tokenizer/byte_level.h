// The alphabet in which byte-level files write bytes: those that print as one character in Latin-1
// as themselves (21-7E, A1-AC, AE-FF), the other 68 in order as U+0100 and on. A space is U+0120.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

std::string to_byte_alphabet(std::string_view bytes);

// False, with `bytes` unspecified: `text`, valid UTF-8, has a character of no byte.
bool from_byte_alphabet(std::string_view text, std::string& bytes);

}  // namespace troupe
