// Whether two sets of files hold one model: its logits from both, compared.
#pragma once

#include <cstdint>
#include <string>

namespace troupe {

struct ModelConfig;  // nn/config/config.h

struct LogitsCheck {
  int64_t positions = 0, vocab = 0;
  bool equal = false;         // bit for bit
  double max_difference = 0;  // over all logits; infinite where one alone is NaN
  double mean_difference = 0;
  double largest = 0, mean = 0;  // of |logit|, what differences are measured by

  static void visit(auto& c, auto&& f) {
    f("positions", c.positions);
    f("vocab", c.vocab);
    f("equal", c.equal);
    f("max_difference", c.max_difference);
    f("mean_difference", c.mean_difference);
    f("largest", c.largest);
    f("mean", c.mean);
  }
};

// The model of the hub's folder built from its files, and `model` from the checkpoint of ours: each
// in f32 on the CPU, one after the other, every weight NaN until it is read. Two rows of up to 32
// tokens, always the same ones. Needs 4 bytes a parameter.
LogitsCheck check_logits(const std::string& hf_folder, const std::string& checkpoint,
                         const ModelConfig& model);

// Whether a weight of the checkpoint loses bits in that type of config.json.
bool rounds(const std::string& checkpoint, const std::string& dtype);

// How the folder's weights came of the checkpoint's.
enum class FolderWeights {
  kSame,
  kMerged,   // adapters are added to them, which the checkpoint's model multiplies apart
  kRounded,  // to another type
};

// Where no weight was rounded the bits must be equal, or the mean difference within 1e-6 of the
// mean logit (merged: 1e-5): the folder's class may compute the same in another order (a softmax over the chosen,
// or over all and divided by their sum). Else the mean difference must be below 5 % of the mean
// logit: rounding to bfloat16 moves logits by 1 % or less, and turns a token to another expert
// where two were nearly equal, which moves that token's logits by any amount. A tensor in a wrong
// place moves all of them by more than their own size.
bool within_tolerance(const LogitsCheck& check, FolderWeights weights);

}  // namespace troupe
