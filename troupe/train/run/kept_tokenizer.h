// The tokenizer in a run's folder: what decodes, evaluates and exports the run wherever the folder
// is moved to, and whatever becomes of the file that the recipe names.
//   RUN/tokenizer/tokenizer.json ...   the files, byte for byte
//   RUN/tokenizer/kept.json            the recipe's name for them, fingerprint, hash of each
#pragma once

#include <string>

#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/data/tokenizer/tokenizer.h"

namespace troupe {

// For the process that writes the folder, at each start: `named` is data.tokenizer, `tokenizer`
// what it opened. A copy that is there stays if it is of the same and whole; else it is made anew,
// with a line. Nothing is kept of `bytes` and `null`, and nothing, with a
// line, where a file is a link out of its folder (core/file/hub_file.h): an export would publish
// what it leads to. Nor where RUN/tokenizer is a folder of somebody's own.
void keep_tokenizer(Fs& fs, const std::string& run, const std::string& named,
                    const Tokenizer& tokenizer, const Log& log);

// What a run's tokenizer is opened from: RUN/tokenizer, where it was kept of `named`, which is
// data.tokenizer of RUN/recipe.yaml; RUN/hf of an import; else `named`. E3201 where a file is not
// what was kept.
std::string run_tokenizer(const std::string& run, const std::string& named);

}  // namespace troupe
