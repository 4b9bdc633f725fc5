#include "troupe/train/recipe/foreign/shell_words.h"

#include <gtest/gtest.h>

#include <chrono>

#include "troupe/core/check.h"

namespace troupe {
namespace {

std::string words_of(const std::string& script) {
  std::string out;
  for (const ShellWord& w : shell_arguments(script).words) out += '[' + w.text + ']';
  return out;
}

TEST(ShellWords, QuotesVariablesAndArraysAreRead) {
  EXPECT_EQ(words_of("A=\"--x 1 \\\n --y 2\"\npython a.py $A \"$A\"\n"),
            "[--x][1][--y][2][--x 1  --y 2]");
  EXPECT_EQ(words_of("A=(--x 'a b' # c\n  --y)\nA+=(--z)\npython a.py ${A[@]} \"${A[@]}\""),
            "[--x][a][b][--y][--z][--x][a b][--y][--z]");
  EXPECT_EQ(words_of("python a.py --p $P ${Q:-7} $(nproc) \"$P/x\" \"$@\""),
            "[--p][$P][7][$(nproc)][$P/x]");
  EXPECT_EQ(words_of("export X=3; srun --n 4 python -u a.py --x=$X && echo --done"), "[--x=3]");
  EXPECT_EQ(words_of("A=(\n--x 1\n)\n"), "[--x][1]");
  EXPECT_EQ(words_of(""), "");
}

TEST(ShellWords, TestsAreEvaluated) {
  const auto taken = [](const std::string& test) {
    return words_of("A=x\nB=\nN=3\nif " + test + "; then F=--yes; else F=--no; fi\npython a.py $F");
  };
  for (const char* test :
       {"[ -n \"$A\" ]", "[ -z \"$C\" ]", "[ -z $C ]", "[[ $A == x ]]", "[[ $A = x && -z $B ]]",
        "[ $N -gt 2 ]", "[ \"$A\" != y ] && [ $N -eq 3 ]", "[ ! -n \"$B\" ]", "[ $A ]",
        "[ $# -eq 0 ]", "[ x = y -o $N -le 3 ]"}) {
    EXPECT_EQ(taken(test), "[--yes]") << test;
  }
  for (const char* test : {"[ -n \"$C\" ]", "[ -n \"\" ]", "[ \"$A\" = \"\" ]",
                           "[ -z \"$A\" ] || [ $N -lt 3 ]", "[[ -n $B ]]", "[[ $N != 3 ]]"}) {
    EXPECT_EQ(taken(test), "[--no]") << test;
  }
  // Not evaluated, and said so: what is guarded is taken as if it ran.
  EXPECT_EQ(taken("[ -f file ]"), "[--yes]");
  EXPECT_EQ(shell_arguments("if command -v x; then A=1; fi\npython a.py").notes.size(), 1U);
  EXPECT_EQ(words_of("if [ a = b ]; then if [ a = a ]; then F=1; else F=2; fi; else F=3; fi\n"
                     "python a.py $F"),
            "[3]");
  EXPECT_EQ(words_of("F=1\n[ -n \"$X\" ] && F=2\n[ -z \"$X\" ] || F=3\npython a.py $F"), "[1]");
  EXPECT_EQ(words_of("if [ a = b ]; then\n python b.py --b\nfi\npython a.py --a"), "[--a]");
  const ShellArguments out = shell_arguments("python x/a.py $1 \"$@\"", {{"1", "p"}, {"2", "q"}});
  EXPECT_EQ(out.program, "x/a.py");
  EXPECT_EQ(out.words.size(), 3U);
}

std::string fault_of_script(const std::string& script) {
  try {
    shell_arguments(script, {}, "run.sh");
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

std::string repeated_line(const std::string& line, int times) {
  std::string out;
  for (int i = 0; i < times; ++i) out += line + '\n';
  return out;
}

TEST(ShellWords, VariablesThatDoubleEndWithTheirLine) {
  const auto begin = std::chrono::steady_clock::now();
  // 40 lines took the memory of the machine; four arguments double 20 times before 1 MiB.
  EXPECT_TRUE(fault_of_script("A=1\n" + repeated_line("A=\"$A$A\"", 40) + "python a.py $A")
                  .starts_with("run.sh:21: E2005 A grows over 1 MiB"));
  EXPECT_NE(fault_of_script("A=1\n" + repeated_line("A=\"$A $A\"", 40)).find("A grows over 1 MiB"),
            std::string::npos);
  EXPECT_NE(fault_of_script("A=(1 2)\n" + repeated_line("A+=(${A[@]})", 40)).find("E2005 "),
            std::string::npos);
  // One line, and many: neither a word nor the words of a command grow without end.
  std::string many = "A=" + std::string(500'000, 'x') + "\npython a.py";
  for (int i = 0; i < 1'000; ++i) many += " $A";
  EXPECT_TRUE(fault_of_script(many).starts_with("run.sh:2: E2005 what variables are replaced by"));
  EXPECT_EQ(fault_of_script(repeated_line("A+=\" --flag 1\"", 5'000) + "python a.py $A"), "");
  EXPECT_EQ(words_of("A=(--x 1)\nA+=(--y)\n"), "[--x][1][--y]");  // an array is passed on once
  EXPECT_EQ(shell_arguments(repeated_line("A+=(x)", 20'000)).words.size(), 20'000U);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

}  // namespace
}  // namespace troupe
