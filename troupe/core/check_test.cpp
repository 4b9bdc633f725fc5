#include "troupe/core/check.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace troupe {
namespace {

template <class F>
Error error_of(F&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e;
  }
  throw std::logic_error("nothing was thrown");
}

TEST(Check, NamesPlaceCodeConditionAndValues) {
  const int k = 9, n = 8;
  const Error e = error_of([&] { TROUPE_CHECK(k <= n, "k", k, "of", n); });
  const std::string what = e.what();
  EXPECT_NE(what.find("check_test.cpp:"), std::string::npos) << what;
  EXPECT_NE(what.find(": E9001 check failed: k <= n: k 9 of 8"), std::string::npos) << what;
  EXPECT_EQ(e.code(), Code::kBrokenContract);
  EXPECT_EQ(e.exit_class(), ExitClass::kBug);
}

TEST(Check, AFaultBeginsWithItsPlaceAndCode) {
  const Error e = error_of([] { fail(Code::kNoRecipe, "x.yaml", "cannot be opened after", 3); });
  EXPECT_STREQ(e.what(), "x.yaml: E2007 cannot be opened after 3");
  EXPECT_EQ(e.exit_class(), ExitClass::kUsage);
}

TEST(Check, AHeldConditionCostsNoEvaluationOfItsMessage) {
  int evaluated = 0;
  TROUPE_CHECK(true, ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST(Codes, TheFirstDigitIsTheExitClass) {
  EXPECT_EQ(exit_class(Code::kNoSuchField), ExitClass::kUsage);
  EXPECT_EQ(exit_class(Code::kUnreadableData), ExitClass::kData);
  EXPECT_EQ(exit_class(Code::kUnreadableCheckpoint), ExitClass::kCheckpoint);
  EXPECT_EQ(exit_class(Code::kNoSpace), ExitClass::kResource);
  EXPECT_EQ(static_cast<int>(exit_class(Code::kBrokenContract)), 70);
}

TEST(Codes, EveryCodeHasAParagraphOfItsOwnAndReadsBack) {
  const std::vector<Code> codes = all_codes();
  EXPECT_TRUE(std::ranges::is_sorted(codes));
  EXPECT_EQ(std::ranges::adjacent_find(codes), codes.end());
  for (const Code code : codes) {
    EXPECT_GT(explain(code).size(), 40u) << to_text(code);
    EXPECT_EQ(code_of(to_text(code)), code);
  }
  EXPECT_EQ(code_of("E1"), std::nullopt);
  EXPECT_EQ(code_of("2003"), std::nullopt);
}

}  // namespace
}  // namespace troupe
