// Text generation with a trained model: continuations of prompts, and answers of a chat.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "troupe/data/text/chat_renderer.h"
#include "troupe/data/text/documents.h"
#include "troupe/data/tokenizer/tokenizer.h"
#include "troupe/nn/generate/generate.h"
#include "troupe/train/step/learner.h"

namespace troupe {

struct SampleOptions {
  int64_t tokens = 64;
  SampleConfig draw = {.temperature = 0.8};
  int64_t window = 0;    // tokens that the model sees at once; 0: its max_positions
  bool special = false;  // special tokens are part of the text
};

// Called with new text, always valid UTF-8, and the number of its prompt.
using OnText = std::function<void(int64_t text, const std::string& piece)>;

// A generator over a learner's weights. If ranks share these, every rank calls.
Generator generator_of(Learner& learner);

// Each prompt and its continuation, up to the tokenizer's end of text. Valid UTF-8; the same
// arguments and weights give the same texts.
std::vector<std::string> sample(Generator& generator, const Tokenizer& tokenizer,
                                const std::vector<std::string>& prompts,
                                const SampleOptions& options, const OnText& on_text = {});

// A conversation in the marks of `data build`, or in a model's own template. Earlier turns stay in the
// KV cache. A template gets the whole conversation for each answer, as apply_chat_template does: what
// somebody says may then spell special tokens.
class Chat {
 public:
  Chat(Generator& generator, const Tokenizer& tokenizer, const ChatTemplate& marks,
       const SampleOptions& options);
  Chat(Generator& generator, const Tokenizer& tokenizer, const ModelTemplate& form,
       const SampleOptions& options);

  void say(const std::string& role, const std::string& text);
  // The next turn of the trained role, without the template's marks.
  std::string answer(const std::function<void(const std::string& piece)>& on_text = {});

 private:
  void append(const std::string& text, bool special_as_text = false);
  void end_with(const std::string& mark);
  std::string rendered(Wanted wanted);
  void begin_answer();
  void end_answer(const TokenList& made, const std::string& text);

  Generator& generator_;
  const Tokenizer& tokenizer_;
  const ChatTemplate marks_;
  const SampleOptions options_;
  TokenList ids_, end_;                            // all so far; those of the closing mark
  std::unique_ptr<ChatRenderers> renderers_ = {};  // of a model's own template
  ChatRow row_ = {};                               // what it is given
};

}  // namespace troupe
