// Generates text token by token, with a cache of keys and values (nn/attention/kv_cache.h): a new token costs
// a forward pass over that token alone. Several texts are generated in one batch. A prefix that a
// text shares with an earlier one, also of an earlier call, is taken from the cache; of a model with
// linear attention only where it is all of the earlier one.
//
// Models whose routing of a token depends on other tokens (expert choice, a capacity in evaluation)
// cannot use the cache: each token then costs a forward pass over its whole text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "troupe/nn/attention/kv_cache.h"
#include "troupe/nn/generate/sampler.h"
#include "troupe/nn/model/model.h"

namespace troupe {

struct GenerateConfig {
  SampleConfig sample;
  int64_t max_tokens = 128;
  std::vector<int64_t> stop = {};  // ids that end a text; they are not part of it
  // Context length in tokens; 0: the model's max_positions. When a text reaches it, generation
  // continues from the newer half, as if the text began there.
  int64_t window = 0;

  static void visit(auto& c, auto&& f) {
    SampleConfig::visit(c.sample, f);
    f("max_tokens", c.max_tokens);
    f("stop", c.stop);
    f("window", c.window);
  }
};

using TokenList = std::vector<int64_t>;
// h of a batch's tokens through a unit; h of the first one is undefined, as is the last one's.
using UnitFunction = std::function<at::Tensor(int64_t unit, const at::Tensor& h)>;
// Calls f on every unit of this rank, in order, for a batch of `tokens`, with the unit's parameters
// gathered. Units of other pipeline stages run on their ranks meanwhile.
using ThroughUnits = std::function<void(int64_t tokens, const UnitFunction& f)>;
// Broadcasts the drawn tokens of one rank that has the head to all that compute together, replicas
// too. A collective: ranks without the head pass zeros.
using TokensOfHead = std::function<TokenList(const TokenList& own)>;
// Called with each new token and the number of its text; returning false ends that text.
using OnToken = std::function<bool(int64_t text, int64_t token)>;

class Generator {
 public:
  // Without `through` all parameters are on this rank, and without `of_head` the head is.
  explicit Generator(Model& model, ThroughUnits through = {}, TokensOfHead of_head = {});

  // The continuation of each prompt; no prompt is empty. Text i is drawn with random sequence i.
  std::vector<TokenList> generate(const std::vector<TokenList>& prompts,
                                  const GenerateConfig& config, const OnToken& on_token = {});

  // Totals of all calls: tokens drawn, tokens that went through the model, and prompt tokens that
  // were found in the cache.
  int64_t tokens_made() const { return made_; }
  int64_t tokens_read() const { return read_; }
  int64_t tokens_reused() const { return reused_; }

 private:
  struct Text {
    int64_t number;           // its prompt's, and its row of the cache
    TokenList seen;           // prompt and what was made
    std::vector<float> next;  // logits of the token to come; empty: another rank has the head
  };

  void begin(Text& text, int64_t window);
  void read_all(Text& text, const TokenList& tokens, int64_t known);
  void read_next(std::vector<Text*>& texts, int64_t window);
  // [B, V] f32, on the host; undefined: another rank has the head.
  at::Tensor logits(const at::Tensor& ids_BS, KvCache* cache);
  // The next token of each, the same on all ranks.
  TokenList draw(const std::vector<Text*>& texts, const std::vector<TokenList>& made,
                 const SampleConfig& how);

  Model& model_;
  ThroughUnits through_;
  TokensOfHead of_head_;
  c10::Device device_;
  bool cached_;
  bool states_;  // a row of the cache cannot be taken in part
  std::optional<KvCache> cache_ = {};
  std::vector<TokenList> held_ = {};  // the tokens of each row of the cache
  int64_t made_ = 0, read_ = 0, reused_ = 0;
};

}  // namespace troupe
