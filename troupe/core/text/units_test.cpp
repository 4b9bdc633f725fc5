#include "troupe/core/text/units.h"

#include <gtest/gtest.h>

#include <random>

namespace troupe {
namespace {

template <class T>
int64_t raw(const T& t) {
  if constexpr (std::is_same_v<T, Duration>) {
    return t.ns;
  } else {
    return t.value;
  }
}

template <class T>
int64_t value_of(std::string_view text) {
  T out;
  return from_text(text, out) ? raw(out) : -1;
}

template <class T>
std::string guess_of(std::string_view text) {
  return expectation(text, T{}).guess;
}

TEST(Units, ReadsCounts) {
  EXPECT_EQ(value_of<Count>("0"), 0);
  EXPECT_EQ(value_of<Count>("2000"), 2000);
  EXPECT_EQ(value_of<Count>("4M"), 4'000'000);
  EXPECT_EQ(value_of<Count>("5T"), 5'000'000'000'000);
  EXPECT_EQ(value_of<Count>("1.5K"), 1500);
  EXPECT_EQ(value_of<Count>("0.000001M"), 1);
}

TEST(Units, ReadsBytes) {
  EXPECT_EQ(value_of<Bytes>("70GiB"), int64_t{70} << 30);
  EXPECT_EQ(value_of<Bytes>("70GB"), 70'000'000'000);
  EXPECT_EQ(value_of<Bytes>("0.5KiB"), 512);
  EXPECT_EQ(value_of<Bytes>("12B"), 12);
  EXPECT_EQ(gib(70), Bytes{int64_t{70} << 30});
}

TEST(Units, ReadsDurations) {
  EXPECT_EQ(value_of<Duration>("500ms"), milliseconds(500).ns);
  EXPECT_EQ(value_of<Duration>("30min"), minutes(30).ns);
  EXPECT_EQ(value_of<Duration>("3h30min"), minutes(210).ns);
  EXPECT_EQ(value_of<Duration>("1d0.5s"), (seconds(86400).ns + milliseconds(500).ns));
  EXPECT_DOUBLE_EQ(milliseconds(1500).seconds(), 1.5);
}

TEST(Units, RefusesWhatIsNotExactOrDoesNotFit) {
  for (const char* text : {"1.0005K", "0.5", "9223372036854775808", "9300000T", "-1", "+1", "", "M",
                           "1.", ".5M", "4MM", "4 M", "1e6", "123456789012345678901"}) {
    EXPECT_EQ(value_of<Count>(text), -1) << text;
  }
  EXPECT_EQ(value_of<Count>("9223372036854775807"), INT64_MAX);
  EXPECT_EQ(value_of<Bytes>("8388608TiB"), -1);  // 2^63
  EXPECT_EQ(value_of<Bytes>("8388607TiB"), (INT64_MAX >> 40) << 40);
  EXPECT_EQ(value_of<Bytes>("70"), -1);
  EXPECT_EQ(value_of<Bytes>("1GiB1B"), -1);
  for (const char* text :
       {"30", "30min3h", "1h1h", "200000d", "106751d24h", "1h-1s", "h", "1h30"}) {
    EXPECT_EQ(value_of<Duration>(text), -1) << text;
  }
}

TEST(Units, GuessesTheUnitThatWasMeant) {
  EXPECT_EQ(guess_of<Count>("4m"), "4M");
  EXPECT_EQ(guess_of<Count>("4 M"), "4M");
  EXPECT_EQ(guess_of<Count>("4MB"), "4M");
  EXPECT_EQ(guess_of<Count>("5thousand"), "");
  EXPECT_EQ(guess_of<Count>("0.5"), "");
  EXPECT_EQ(guess_of<Bytes>("70G"), "70GiB");
  EXPECT_EQ(guess_of<Bytes>("70Gib"), "70GiB");
  EXPECT_EQ(guess_of<Bytes>("70"), "");
  EXPECT_EQ(guess_of<Duration>("3hours30m"), "3h30min");
  EXPECT_EQ(guess_of<Duration>("90 sec"), "90s");
  EXPECT_EQ(guess_of<Duration>("30"), "");
  EXPECT_EQ(guess_of<Duration>("fast"), "");
  EXPECT_EQ(expectation("x", Duration{}).wanted,
            "a duration such as 30min (ns, us, ms, s, min, h, d)");
}

TEST(Units, PrintsTheLargestUnitThatLeavesAWholeNumber) {
  EXPECT_EQ(to_text(Count{4'000'000}), "4M");
  EXPECT_EQ(to_text(Count{1'500'000}), "1500K");
  EXPECT_EQ(to_text(Count{7}), "7");
  EXPECT_EQ(to_text(Bytes{0}), "0B");
  EXPECT_EQ(to_text(Bytes{1000}), "1000B");
  EXPECT_EQ(to_text(Bytes{int64_t{1536} << 20}), "1536MiB");
  EXPECT_EQ(to_text(minutes(90)), "90min");
  EXPECT_EQ(to_text(Duration{0}), "0s");
}

template <class T>
void round_trip(int64_t n) {
  T in{n}, out;
  ASSERT_TRUE(from_text(to_text(in), out)) << to_text(in);
  ASSERT_EQ(in, out) << to_text(in);
}

TEST(Units, PrintedValuesReadBackTheSame) {
  std::mt19937_64 random(1);
  const int64_t factors[] = {1, 1000, 1024, 1'000'000'000, int64_t{1} << 30, minutes(60).ns};
  for (int i = 0; i < 20000; ++i) {
    const int64_t factor = factors[i % std::size(factors)];
    const int64_t n = static_cast<int64_t>(random() >> (1 + i % 60)) / factor * factor;
    round_trip<Count>(n);
    round_trip<Bytes>(n);
    round_trip<Duration>(n);
  }
  round_trip<Count>(INT64_MAX);
  round_trip<Bytes>(INT64_MAX);
  round_trip<Duration>(INT64_MAX);
}

TEST(Units, NoTextBreaksTheReader) {
  std::mt19937 random(2);
  constexpr std::string_view kLetters = "0123456789.KMGiBTshmin -";
  for (int i = 0; i < 50000; ++i) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += kLetters[random() % kLetters.size()];
    Duration d;
    if (from_text(text, d)) round_trip<Duration>(d.ns);
    Bytes b;
    if (from_text(text, b)) round_trip<Bytes>(b.value);
    const std::string guess = guess_of<Bytes>(text);
    EXPECT_TRUE(guess.empty() || value_of<Bytes>(guess) >= 0) << text;
  }
}

}  // namespace
}  // namespace troupe
