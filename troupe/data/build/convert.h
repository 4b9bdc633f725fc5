// From other files of tokens, or several, to one Megatron data set.
#pragma once

#include <string>
#include <vector>

#include "troupe/core/file/log.h"
#include "troupe/core/file/publish.h"
#include "troupe/data/tokens/sources.h"
#include "troupe/data/tokens/token_writer.h"

namespace troupe {

// `data merge`: the documents of all inputs, one after the other, as Megatron's merge_datasets. All
// must have one token type, and weights all or none. Where each input says which tokenizer made it
// (PREFIX.json), these must be one (E3108), and the output says the same.
TokenCounts merge_tokens(Fs& fs, const std::vector<std::string>& prefixes,
                         const std::string& output, bool replace = false, const Log& log = {});

// `data convert --from mds`: a folder that LLM-Foundry tokenized for `streaming`.
struct MdsConfig {
  std::string input;  // the folder with index.json
  std::string output;
  std::string column = "tokens";
  // Where the column is plain bytes, what they are: Foundry's old files hold i64.
  std::string bytes_are = "i64";
  int64_t vocab = 0;  // 0: unknown, ids are stored in 4 bytes
  bool replace = false;
  static void visit(auto& c, auto&& f) {
    f("input", c.input);
    f("output", c.output);
    f("column", c.column);
    f("bytes_are", c.bytes_are);
    f("vocab", c.vocab);
    f("replace", c.replace);
  }
};

// A sample becomes a document. Sizes, offsets and xxHash sums are checked; what is wrong is E3107
// with the shard's name. Compressed shards must be unpacked first.
TokenCounts convert_mds(const MdsConfig& config, Fs& fs, const Log& log = {});

// `data convert --from llmc` and `flat`: a file of ids in a row (sources.h). A document ends with
// each end-of-document id, which stays its last; what follows the last one is a document too.
struct IdsConfig {
  SourceConfig input = FlatFile{};  // or LlmcFile
  std::string output;
  int32_t eod = 0;
  int64_t vocab = 0;  // 0: unknown, ids are stored in 4 bytes
  bool replace = false;
};
TokenCounts convert_ids(const IdsConfig& config, Fs& fs, const Log& log = {});

}  // namespace troupe
