#include "troupe/core/file/secrets.h"

#include <gtest/gtest.h>

#include <string>

namespace troupe {
namespace {

TEST(Secrets, F148_UsersPasswordsAndQueriesGoAndTheRestStays) {
  const std::pair<const char*, const char*> cases[] = {
      {"", ""},
      {"no address: a/b@c?d=e", "no address: a/b@c?d=e"},
      {"https://host/a@v2/x.bin is fine", "https://host/a@v2/x.bin is fine"},
      {"https://host:8080/x, http://[::1]:80/y.", "https://host:8080/x, http://[::1]:80/y."},
      {"https://me:hunter2@host/x", "https://***@host/x"},
      {"https://token@host", "https://***@host"},
      {"https://me:hun@ter2@host/x", "https://***@host/x"},
      {"https://me:hun'ter2@host/x", "https://***@host/x"},
      {"https://me:hun/ter2@host/x", "https://***@host/x"},
      {"https://me:hun?ter2@host/x", "https://***@host/x"},
      {"s3://b/k?X-Amz-Signature=12&part=3", "s3://b/k?X-Amz-Signature=***&part=***"},
      {"https://h/x?sig=a%2Bb=;t=#token=c", "https://h/x?sig=***;t=#token=***"},
      {"https://h/x?hunter2", "https://h/x?***"},
      {"[{path: 'https://h/x?sig=12'}, {path: 3}]", "[{path: 'https://h/x?sig=***'}, {path: 3}]"},
      {"{path: https://me:p@h/x, weight: 1}", "{path: https://***@h/x, weight: 1}"},
      {R"({"path":"https://h/x?sig=1","mail":"a@b"})",
       R"({"path":"https://h/x?sig=***","mail":"a@b"})"},
      {R"({\"https://me:p@h\"})", R"({\"https://***@h\"})"},
      {"a://b:c@d e://f:g@h", "a://***@d e://***@h"},
      {"://", "://"},
      {"://@", "://***@"},
  };
  for (const auto& [text, want] : cases) {
    EXPECT_EQ(without_secrets(text), want);
    EXPECT_EQ(without_secrets(want), want) << "done twice";
  }
}

TEST(Secrets, KnowsAnAddressThatWasWrittenDownWithoutThem) {
  EXPECT_TRUE(lacks_secrets(without_secrets("https://me:hunter2@host/x")));
  EXPECT_TRUE(lacks_secrets(without_secrets("https://host/x?sig=12")));
  EXPECT_TRUE(lacks_secrets(without_secrets("https://host/x?12")));
  EXPECT_FALSE(lacks_secrets("https://me:hunter2@host/x?sig=12"));
  EXPECT_FALSE(lacks_secrets("https://host/x***"));
}

TEST(Secrets, F145_ALongTextIsReadInLinearTimeAndNoCallNests) {
  for (const std::string piece : {"x", "://", ":/", "@", "://a:b", "?a=", "'", "://x?"}) {
    std::string text = "# x://";
    while (text.size() < 1'000'000) text += piece;
    EXPECT_LE(without_secrets(text).size(), 2 * text.size()) << piece;
  }
}

}  // namespace
}  // namespace troupe
