#include "troupe/train/recipe/foreign/shell_words.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>

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
  EXPECT_EQ(words_of("A=(\n--x 1  # don't (yet)\n  # it's --z\n--y 2\n)\npython a.py ${A[@]}"),
            "[--x][1][--y][2]");
  EXPECT_EQ(words_of(""), "");
}

// As ModelOpt's files have it: the script that reads them starts the program.
TEST(ShellWords, FlagsThatOnlyAVariableHoldsAreRead) {
  const std::string script = "SIZE=8\nMODEL_ARGS=\" \\\n  --x $SIZE \\\n  --y \\\n\"\n";
  EXPECT_EQ(words_of(script), "[--x][8][--y]");
  EXPECT_EQ(words_of(script + "python a.py --z\n"), "[--z]");
  EXPECT_EQ(words_of("B=\"--b 1\"\nA=\"--a 2\"\nC=text\n"), "[--b][1][--a][2]");
  const ShellArguments out = shell_arguments(script);
  ASSERT_EQ(out.notes.size(), 1U);
  EXPECT_NE(out.notes[0].find("are those of MODEL_ARGS"), std::string::npos);
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

TEST(ShellWords, ArithmeticIsEvaluated) {
  const auto value = [](const std::string& text) {
    return words_of("A=12\nB=5\nZ=0\npython a.py --x $((" + text + "))");
  };
  const std::pair<const char*, const char*> kCases[] = {
      {"1 + 2 * 3", "7"},      {"(1 + 2) * 3", "9"},     {"$A / $B", "2"},
      {"A % B", "2"},          {"${A} - -B", "17"},      {"2 ** 10", "1024"},
      {"A > B ? A : B", "12"}, {"!Z && 1", "1"},         {"0x10 + 010 + 2#101", "29"},
      {"1 << 4 | 1", "17"},    {"A == 12", "1"},         {"(A > 1) ? 1 : 0", "1"},
      {"Z ? 1 / Z : 7", "7"},  {"~0 ^ 1", "-2"},         {"7 / 2 * 2", "6"},
      {"A - B - 1", "6"},      {"5 >= 5 && 4 <= 3", "0"}};
  for (const auto& [text, want] : kCases) {
    EXPECT_EQ(value(text), "[--x][" + std::string(want) + "]") << text;
  }
  EXPECT_EQ(words_of("N=1\n((N += 4))\nlet N=N*2\nM=$((N++))\npython a.py $N $M"), "[11][10]");
  // What is not set, or is no expression, stays as it is written.
  EXPECT_EQ(value("$C / 2"), "[--x][$(($C / 2))]");
  EXPECT_EQ(value("1 / Z"), "[--x][$((1 / Z))]");
  EXPECT_EQ(value("1 +"), "[--x][$((1 +))]");
  // Names that double what they name, and brackets without end.
  std::string doubles = "V0=1\n";
  for (int i = 1; i < 60; ++i) {
    const std::string before = "V" + std::to_string(i - 1);
    doubles += "V" + std::to_string(i) + "='" + before + '+' + before + "'\n";
  }
  EXPECT_EQ(words_of(doubles + "python a.py $((V59))"), "[$((V59))]");
  EXPECT_EQ(words_of("python a.py $((" + std::string(5000, '(') + "1))").substr(0, 4), "[$((");
}

TEST(ShellWords, ValuesAreCutAndReplacedAsAShellDoes) {
  const std::string set = "P=/a/b.tar.gz\nL=(x y z)\nE=\n";
  const std::pair<const char*, const char*> kCases[] = {{"${P##*/}", "[b.tar.gz]"},
                                                        {"${P%.*}", "[/a/b.tar]"},
                                                        {"${P%%.*}", "[/a/b]"},
                                                        {"${P#*/}", "[a/b.tar.gz]"},
                                                        {"${P//./_}", "[/a/b_tar_gz]"},
                                                        {"${P/a/c}", "[/c/b.tar.gz]"},
                                                        {"${P:3:1}", "[b]"},
                                                        {"${#L[@]}", "[3]"},
                                                        {"${L[1]}", "[y]"},
                                                        {"${L[@]}", "[x][y][z]"},
                                                        {"${E:-d}", "[d]"},
                                                        {"${E-d}", ""},
                                                        {"${N:=7} $N", "[7][7]"},
                                                        {"${P:+yes}", "[yes]"},
                                                        {"${N:+yes}", ""},
                                                        {"${N:-${M:-3}}", "[3]"},
                                                        {"${N:-\"a b\"}", "[a][b]"},
                                                        {"${#P}", "[11]"},
                                                        {"${P^^}", "[/A/B.TAR.GZ]"},
                                                        {"'$P' \\$P", "[$P][$P]"},
                                                        {"$'a\\tb'", "[a\tb]"}};
  for (const auto& [word, want] : kCases) {
    EXPECT_EQ(words_of(set + "python a.py " + word), want) << word;
  }
  EXPECT_EQ(words_of("declare -A M=([a]=1 [b]=2)\nM[c]=3\nK=b\npython a.py ${M[$K]} ${M[c]}"),
            "[2][3]");
}

TEST(ShellWords, WhatIsPrintedIntoAVariableIsItsValue) {
  const std::string list =
      "L=()\nfor ((i = 0; i < 4; i++)); do if (( i < 1 )); then L+=(0); else L+=(1); fi; done\n";
  EXPECT_EQ(
      words_of(list +
               "printf -v F \"[%s]\" \"$(IFS=', '; echo \"${L[*]}\")\"\npython a.py --f \"$F\""),
      "[--f][[0,1,1,1]]");
  EXPECT_EQ(words_of("printf -v A '%s-%03d;' x 7 y\npython a.py $A"), "[x-7;y-0;]");
  EXPECT_EQ(words_of("A=3\npython a.py $(echo $A 4) $(echo $B)"), "[3][4][$(echo $B)]");
}

TEST(ShellWords, ModulesAndMegatronSwiftsVerbsAreProgramsToo) {
  const ShellArguments module =
      shell_arguments("python3 -m verl.trainer.main_ppo data.path=/a/b.py trainer.n=2");
  EXPECT_EQ(module.program, "verl.trainer.main_ppo");
  EXPECT_EQ(module.words.size(), 2U);
  const ShellArguments swift = shell_arguments("N=2 \\\nmegatron sft --lr 1e-5");
  EXPECT_EQ(swift.program, "megatron sft");
  EXPECT_EQ(swift.words.size(), 2U);
  EXPECT_EQ(shell_arguments("python -m torch.distributed.run train.py --a").program, "train.py");
}

TEST(ShellWords, EvalFunctionsAndOtherShellsAreRead) {
  EXPECT_EQ(words_of("O=\" --x 1 \\\n --f '([1]*4)' \"\nC=\"torchrun a.py ${O} --y 2 &> log\"\n"
                     "echo ${C}\neval ${C}"),
            "[--x][1][--f][([1]*4)][--y][2]");
  EXPECT_EQ(words_of("run() {\n  local n=$1; shift\n  torchrun --nproc $n a.py \"$@\" --n $n\n}\n"
                     "run 8 --x 'a b'"),
            "[--x][a b][--n][8]");
  EXPECT_EQ(
      words_of(
          "A=(--x 1)\nT=\"cd /w; python a.py ${A[@]}\"\nsbatch <<EOF\n#!/bin/bash\n"
          "#SBATCH --nodes=2\nsrun --mpi=pmix \\\n bash -x -c \"${T}\" 2>&1 | tee \\$J.log\nEOF\n"),
      "[--x][1]");
  EXPECT_EQ(words_of("cat <<'EOF' > f\npython no.py --no\nEOF\npython a.py --yes"), "[--yes]");
  EXPECT_EQ(words_of("python prepare.py --out d\npython pretrain.py --x 1 >> log 2>&1 &\nwait"),
            "[--x][1]");
  EXPECT_EQ(shell_arguments("A=1 bash sbatch.sh --x 1").script, "sbatch.sh");
}

// As a script is called without its arguments, no branch of a test of theirs is known to run.
TEST(ShellWords, WhatHangsOnAValueThatNobodyGivesStaysOpen) {
  const std::string script =
      "A=$1\nL=0\nif [ $A = x ]; then O=' --bf16'; L=1; else O=; export L=2; fi\n"
      "python a.py --l $L $O";
  EXPECT_EQ(words_of(script), "[--l][$L][$O]");
  const ShellArguments open = shell_arguments(script);
  EXPECT_EQ(open.open, (std::set<std::string>{"O"}));
  std::string given;
  for (const ShellWord& w : shell_arguments(script, {{"1", "x"}}).words) given += w.text + ' ';
  EXPECT_EQ(given, "--l 1 --bf16 ");
  EXPECT_EQ(words_of("A=$1\nL=0\n[ $A = x ] && L=1\npython a.py $L"), "[$L]");
  EXPECT_EQ(words_of("A=$1\nL=0\ncase $A in x) L=1 ;; *) L=2 ;; esac\npython a.py $L"), "[$L]");
  // A script's own default, and what asks for the machine, are as before.
  EXPECT_EQ(words_of("A=$1\nif [ -z $A ]; then A=7; fi\npython a.py $A"), "[7]");
  EXPECT_EQ(words_of("if [ $(hostname) = x ]; then A=7; fi\npython a.py $A"), "[7]");
  EXPECT_EQ(words_of("if [ \"$1\" = x ]; then A=7; else A=8; fi\npython a.py $A"), "[8]");
}

TEST(ShellWords, TheScriptsOwnArgumentsAreParsed) {
  const std::string script =
      "C=none\nD=${3:-MOCK}\nwhile [[ $# -gt 0 ]]; do\n  case $1 in\n    --ckpt)\n      C=\"$2\"\n"
      "      shift 2\n      ;;\n    -h|--help) echo help; exit 0 ;;\n    *) echo \"no $1\"; exit 1 "
      ";;\n"
      "  esac\ndone\nfor i in 1 2; do\n  L+=\" --l $i\"\ndone\npython a.py --c $C --d $D $L";
  EXPECT_EQ(words_of(script), "[--c][none][--d][MOCK][--l][1][--l][2]");
  std::string given;
  for (const ShellWord& w : shell_arguments(script, {{"1", "--ckpt"}, {"2", "/c"}}).words) {
    given += '[' + w.text + ']';
  }
  EXPECT_EQ(given, "[--c][/c][--d][MOCK][--l][1][--l][2]");
  EXPECT_EQ(words_of("for ((i = 0; i < 3; i++)); do A+=\" $i\"; done\npython a.py $A"),
            "[0][1][2]");
  // A file is taken to exist, so that what a script does without it is not done.
  EXPECT_EQ(words_of("if [ ! -f p ]; then\n echo no; exit 1\nfi\npython a.py --x"), "[--x]");
  EXPECT_EQ(words_of("cd w || { echo no; exit 1; }\npython a.py --x"), "[--x]");
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

// A planted script: nothing of it runs, and it ends.
TEST(ShellWords, NothingRunsAndNothingHangs) {
  const auto begin = std::chrono::steady_clock::now();
  const std::string folder = ::testing::TempDir() + "troupe_shell_words";
  std::filesystem::create_directories(folder);
  const std::string kept = folder + "/kept", made = folder + "/made";
  { std::ofstream(kept) << "kept"; }
  const std::string planted =
      "A=$(touch " + made + ")\nB=`touch " + made + "`\nrm -rf " + folder + "\neval \"rm -rf " +
      folder + "\"\nbash -c 'touch " + made + "'\ntouch " + made + " && cat < /dev/zero\n: > " +
      kept + "\nsbatch <<EOF\nrm -rf " + folder + "\ntouch " + made +
      "\nEOF\ncat /dev/urandom | tee " + made + "\n[ -n \"$(touch " + made + ")\" ] && touch " +
      made + "\npython a.py --x $(touch " + made + ") 1\n";
  EXPECT_EQ(words_of(planted), "[--x][$(touch " + made + ")][1]");
  EXPECT_TRUE(std::filesystem::exists(kept));
  EXPECT_EQ(std::filesystem::file_size(kept), 4U);
  EXPECT_FALSE(std::filesystem::exists(made));
  std::filesystem::remove_all(folder);

  const std::string end = "\npython a.py --x";
  EXPECT_NE(fault_of_script("while true; do A=1; done" + end).find("run.sh:1: E2005 has run"),
            std::string::npos);
  for (const char* loop :
       {"while [ 1 -eq 1 ]; do :; done", "until false; do B=$((B+1)); done", "f() { f; }; f",
        "for ((;;)); do C=2; done", "f() { f & f; }; f", "while :; do A+=x; done",
        "A='eval $A'; eval $A",
        "for i in 1 2 3; do for j in 1 2 3; do set -- \"$@\" \"$@\" x; done; done"}) {
    EXPECT_TRUE(fault_of_script(loop + end).find("E2005") != std::string::npos ||
                words_of(loop + end) == "[--x]")
        << loop;
  }
  // What only a command ends runs once.
  EXPECT_EQ(words_of("while ! curl host; do sleep 1; done\nwhile read l; do A+=1; done" + end),
            "[--x]");
  for (const char* open :
       {"(", "{ ", "$(", "${A:-", "\"", "if a; then ", "case a in a) ", "[[ a && "}) {
    std::string deep;
    for (int i = 0; i < 20'000; ++i) deep += open;
    const std::string said = fault_of_script(deep + end);
    EXPECT_TRUE(said.empty() || said.find("E2005") != std::string::npos) << open;
  }
  const std::string letters(1 << 19, 'a');
  EXPECT_EQ(words_of("A=" + letters +
                     "\n[[ $A == *a*a*a*b ]] && B=1\nC=${A%%*b}\ncase $A in *b) D=1;; esac" + end),
            "[--x]");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

}  // namespace
}  // namespace troupe
