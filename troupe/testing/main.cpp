// main() of every test program. --file=core/config/config runs the tests of
// troupe/core/config/config_test.cpp alone, of a program that has several files'
// (cmake/troupe_test.cmake).
#include <gtest/gtest.h>

#include <iostream>
#include <string>
#include <string_view>

namespace {

// The suites of a file as a filter of GoogleTest's, or nothing. A suite stands in one file.
std::string suites_of(const std::string& file) {
  const std::string end = "troupe/" + file + "_test.cpp";
  const ::testing::UnitTest& all = *::testing::UnitTest::GetInstance();
  std::string filter;
  for (int i = 0; i < all.total_test_suite_count(); ++i) {
    const ::testing::TestSuite& suite = *all.GetTestSuite(i);
    if (suite.total_test_count() == 0) continue;
    if (!std::string_view(suite.GetTestInfo(0)->file()).ends_with(end)) continue;
    filter.append(suite.name()).append(".*:");
  }
  return filter;
}

}  // namespace

int main(int argc, char** argv) {
  ::testing::InitGoogleTest(&argc, argv);
  constexpr std::string_view kFile = "--file=";
  for (int i = 1; i < argc; ++i) {
    const std::string_view word = argv[i];
    if (!word.starts_with(kFile)) continue;
    const std::string file(word.substr(kFile.size()));
    const std::string filter = suites_of(file);
    if (filter.empty()) {
      std::cerr << argv[0] << " has no tests of troupe/" << file << "_test.cpp\n";
      return 2;
    }
    ::testing::GTEST_FLAG(filter) = filter;
  }
  return RUN_ALL_TESTS();
}
