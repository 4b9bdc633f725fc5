// The rows of a Parquet or Arrow file as JSONL, read by Python's pyarrow: the program itself has no
// reader for them, and who has such files has Python. The interpreter is TROUPE_PYTHON, or python3.
#pragma once

#include <memory>
#include <string>

#include "troupe/data/text/text_stream.h"

namespace troupe {

// The column `key` alone, {"KEY": VALUE} a line, or all columns where it is empty; lists and structs, as chats have, become lists and
// objects. E3001 with what Python says: no pyarrow, no such column, row 7 is damaged.
std::unique_ptr<TextStream> table_rows(const std::string& path, const std::string& key);

}  // namespace troupe
