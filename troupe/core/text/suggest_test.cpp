#include "troupe/core/text/suggest.h"

#include <gtest/gtest.h>

namespace troupe {
namespace {

const std::vector<std::string_view> kVerbs = {"train", "export", "eval", "plan"};

TEST(Suggest, ForgivesInsertedDroppedReplacedAndSwappedLetters) {
  for (const char* word : {"tran", "traain", "trein", "rtain", "TRAIN"}) {
    EXPECT_EQ(nearest(word, kVerbs), "train") << word;
  }
  EXPECT_EQ(nearest("num-experts", {"num_expert", "num_experts"}), "num_experts");
}

TEST(Suggest, SaysNothingWhereNothingIsNear) {
  EXPECT_EQ(nearest("checkpoint", kVerbs), "");
  EXPECT_EQ(nearest("x", {"lr", "k"}), "");  // all letters replaced is no likeness
  EXPECT_EQ(nearest("train", {}), "");
  EXPECT_EQ(nearest("", kVerbs), "");
  EXPECT_EQ(nearest(std::string(100000, 'a'), kVerbs), "");
}

TEST(Suggest, OfAChoiceTheFirstPartIsEnoughWhereItIsOnes) {
  EXPECT_EQ(nearest_choice("topk", {"sigmoid_bias", "topk_softmax"}), "topk_softmax");
  EXPECT_EQ(nearest_choice("top-k", {"sigmoid_bias", "topk_softmax"}), "topk_softmax");
  EXPECT_EQ(nearest_choice("topk", {"topk_sigmoid", "topk_softmax"}), "");
  EXPECT_EQ(nearest_choice("tran", kVerbs), "train");
  EXPECT_EQ(nearest_choice("t", kVerbs), "");
}

TEST(Suggest, ANearnessMayBeAskedFor) {
  EXPECT_EQ(nearest("sets", {"eps"}), "eps");
  EXPECT_EQ(nearest("sets", {"eps", "seta"}, 1), "seta");
  EXPECT_EQ(nearest("sets", {"eps"}, 1), "");
}

TEST(Suggest, TakesTheFirstOfEquals) {
  EXPECT_EQ(nearest("beta3", {"beta1", "beta2"}), "beta1");
}

}  // namespace
}  // namespace troupe
