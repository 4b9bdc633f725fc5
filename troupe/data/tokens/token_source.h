// Tokens in order, cut into sequences (documents, as most files have one sequence a document).
//
// Token positions are global to a source: sequence i is the tokens [start(i), start(i + 1)),
// start(0) = 0 and start(num_sequences) = num_tokens. Empty sequences are legal. All is const and
// may be called by several threads at once; nothing but small state is held in memory, so a source
// of a terabyte costs as much as one of a kilobyte.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace troupe {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual std::string place() const = 0;  // the file, for messages
  virtual int64_t num_sequences() const = 0;
  virtual int64_t num_tokens() const = 0;
  // start(first), start(first + 1), ...; up to and with start(num_sequences).
  virtual void starts(int64_t first, std::span<int64_t> out) const = 0;
  // The tokens from position `first` on, across sequences.
  virtual void read(int64_t first, std::span<int32_t> out) const = 0;
  // How much each of those tokens counts as a label: 1 unless the source says otherwise.
  virtual bool has_weights() const { return false; }
  virtual void read_weights(int64_t first, std::span<float> out) const;
  // Whether a read may wait for a network: several at once are then faster.
  virtual bool is_far() const { return false; }
  // Throws E3104 if a file is not what it was when it was opened.
  virtual void require_unchanged() const {}
  // Equal for equal contents, on any machine; of large files a part stands for the whole.
  virtual std::string fingerprint() const = 0;

  int64_t start(int64_t sequence) const;
  // The sequence that holds the token: start(i) <= token < start(i + 1).
  int64_t sequence_at(int64_t token) const;
  // Where sequences begin strictly between the tokens `first` and `end`; each place once.
  std::vector<int64_t> starts_between(int64_t first, int64_t end) const;
};

using TokenSourcePtr = std::shared_ptr<const TokenSource>;

// The sequences [begin, end) of a source as a source of its own.
TokenSourcePtr sequence_range(TokenSourcePtr source, int64_t begin, int64_t end);

// Throws E3102 for the first id not in [0, vocab), with file, sequence and position. `first` is the
// position of ids[0].
void require_below(std::span<const int32_t> ids, int64_t vocab, const TokenSource& source,
                   int64_t first);

// Reads all tokens, or about `blocks` blocks spread evenly over the source (0: all), and checks
// each as require_below does. Returns how many were read.
int64_t scan_tokens(const TokenSource& source, int64_t vocab, int64_t blocks = 0);

}  // namespace troupe
