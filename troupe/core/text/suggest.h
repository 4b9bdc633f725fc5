// "Did you mean": for fields, kinds, enum values, verbs, file names.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

// `word` in lower case, with '_' for '-' and ' ': how names of ours are written.
std::string normalized(std::string_view word);

// The known name nearest to `word` once both are normalized; the first of equals; "" if none is
// near. Near: at most max(2, size / 3) letters inserted, dropped, replaced or swapped with a
// neighbor; with `most`, at most so many.
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known);
std::string_view nearest(std::string_view word, const std::vector<std::string_view>& known,
                         size_t most);

// nearest(), or else the one known name that begins with the word, underscores aside: of a choice
// people write the first part ("topk" for "topk_softmax").
std::string_view nearest_choice(std::string_view word, const std::vector<std::string_view>& known);

// "a, b, c"
std::string joined(const std::vector<std::string_view>& words);

}  // namespace troupe
