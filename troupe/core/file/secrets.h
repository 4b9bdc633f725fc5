// What may be a secret in an address, taken out of any text before it is shown or written.
//   https://me:hunter2@host/x?sig=1234&part=2   becomes   https://***@host/x?sig=***&part=***
//
// User and password go, and the values of a query: which of them signs, only the server knows. The
// time is linear in the text and no call nests, whatever the text is.
#pragma once

#include <string>
#include <string_view>

namespace troupe {

std::string without_secrets(std::string_view text);

// Whether an address was written down by without_secrets(), which is not to be asked for.
bool lacks_secrets(std::string_view url);

}  // namespace troupe
