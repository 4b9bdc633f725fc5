// Whether a model's own way to write chats lies beside its tokenizer. Nothing here reads such a
// template; whoever writes chats says so.
#pragma once

#include <string>

namespace troupe {

// The file with it, FOLDER/chat_template.jinja or a tokenizer_config.json that has the key
// chat_template; empty: there is none. `tokenizer` is what open_tokenizer takes.
std::string chat_template_file(const std::string& tokenizer);

}  // namespace troupe
