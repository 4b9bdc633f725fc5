// The program `troupe`: verbs, errors, exit classes.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <new>
#include <string_view>

#include "apps/standard_output.h"
#include "apps/terminal_text.h"
#include "apps/verbs.h"
#include "troupe/core/check.h"
#include "troupe/core/device/cpu.h"
#include "troupe/core/device/limits.h"
#include "troupe/core/device/open_files.h"
#include "troupe/core/file/secrets.h"
#include "troupe/core/text/plain_text.h"
#include "troupe/core/text/suggest.h"
#include "troupe/train/loop/signals.h"
#include "troupe/train/observe/run_files.h"
#include "troupe/train/observe/thread_limit.h"
#include "troupe/train/observe/version.h"

namespace troupe {
namespace {

// "troupe data biuld: no such verb. Did you mean build?", where a word should be a verb and is
// none.
std::string unknown_verb(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* group = &app;
  std::string said = "troupe";
  for (size_t i = 1; i < words.size() && !words[i].starts_with('-'); ++i) {
    const std::vector<const CLI::App*> inner = group->get_subcommands({});
    if (inner.empty()) return {};
    std::vector<std::string_view> verbs;
    const CLI::App* next = nullptr;
    for (const CLI::App* verb : inner) {
      verbs.push_back(verb->get_name());
      if (verb->get_name() == words[i]) next = verb;
    }
    said += ' ' + words[i];
    if (next == nullptr) {
      const std::string guess(nearest(words[i], verbs));
      return said + ": no such verb. " +
             (guess.empty() ? "There are " + joined(verbs) : "Did you mean " + guess + "?");
    }
    group = next;
  }
  return {};
}

// "help" and "help data build" are "--help" and "data build --help".
std::vector<std::string> without_help_verb(std::vector<std::string> words) {
  if (words.size() < 2 || words[1] != "help") return words;
  words.erase(words.begin() + 1);
  if (words.size() == 1 || words.back() != "--help") words.emplace_back("--help");
  return words;
}

// Started with `2>&-`, the first file that is opened would be number 2, and get all messages.
void open_standard_files() {
  for (const int fd : {0, 1, 2}) {
    if (::fcntl(fd, F_GETFD) < 0 && ::open("/dev/null", O_RDWR) != fd) std::abort();
  }
}

int run(Call& call) {
  CLI::App app(
      "Troupe trains mixture-of-experts language models.\n\n"
      "  troupe check recipe.yaml     all that is wrong with a recipe, before anything runs\n"
      "  troupe train recipe.yaml     trains; the same command resumes after any stop\n"
      "  troupe generate RUN -p TEXT  text from what was trained\n"
      "  troupe data build TEXT ...   tokens of text; tokenizer train makes a vocabulary\n"
      "  troupe import, export        from and to Hugging Face's folders\n"
      "  troupe inspect, diff         what a file holds; where two runs differ\n",
      "troupe");
  const std::string verbose_help =
      "with --version: also PyTorch, CUDA, the GPUs and the processors that it is for";
  CLI::Option* verbose = app.add_flag("--verbose", verbose_help);
  verbose->needs(app.set_version_flag(
      "--version", [verbose] { return verbose->count() > 0 ? version_text() : version_line(); }));
  app.footer(
      "troupe help VERB says more. Exit classes: 0 done, 2 usage or recipe, 3 data,\n"
      "4 checkpoint, 5 numbers that are not finite, 6 lost peer, 7 memory, disk or device,\n"
      "70 a fault of the program.");
  app.require_subcommand(1);
  for (const Verb& verb : kVerbs) verb.add(app, call);
  std::vector<std::string> words(call.words.rbegin(), call.words.rend() - 1);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    // Asked for help with a word that is no verb, the parser would answer with the program's own.
    const std::string wrong = unknown_verb(app, call.words);
    if (wrong.empty()) return app.exit(error) == 0 ? 0 : 2;
    std::cerr << wrong << '\n';
    return 2;
  }
  return call.code;
}

// Runs the command and prints why it failed; returns the exit code.
int run_to_exit_code(int argc, char** argv) {
  Call call{without_help_verb(std::vector<std::string>(argv, argv + argc))};
  const TerminalText out(std::cout, STDOUT_FILENO), err(std::cerr, STDERR_FILENO);
  try {
    open_standard_files();
    open_files();  // raises their limit, for the ranks that this program starts too
    check_cpu();
    // With several ranks, the first prints for all.
    const char* const rank = std::getenv("RANK");
    if (rank == nullptr || std::string_view(rank) == "0") {
      for (const std::string& line : unknown_variables()) std::cerr << line << '\n';
    }
    return run(call);
  } catch (const Error& error) {
    std::cerr << plain_text(without_secrets(error.what())) << '\n';
    return static_cast<int>(error.exit_class());
  } catch (const std::bad_alloc&) {
    std::cerr << "out of memory" << limits_behind(ENOMEM) << '\n';
    return static_cast<int>(ExitClass::kResource);
  } catch (const std::exception& error) {
    if (const auto refused = refused_thread(error)) {
      std::cerr << refused->what() << '\n';
      return static_cast<int>(refused->exit_class());
    }
    std::cerr << "a fault of the program, troupe " << version() << " (" << commit()
              << "): " << plain_text(without_secrets(error.what()))
              << "\nPlease report it with the command and the recipe.\n";
    return static_cast<int>(ExitClass::kBug);
  }
}

}  // namespace
}  // namespace troupe

// A write beyond the limit on file sizes (ulimit -f) fails as any other write, in every verb; a run
// takes the signals that it takes later from here on.
static void hold_signals_of(int argc, char** argv) {
  ::signal(SIGXFSZ, SIG_IGN);
  if (argc > 1 && std::string_view(argv[1]) == "train") troupe::hold_signals();
}

// _exit skips the destructors of globals. PyTorch's destructors take 80 ms to empty its operator
// tables: a quarter of the time of a command that does no work. No global of this program needs its
// destructor. A profiler that was loaded into the process writes its results at exit, so with one
// the destructors run.
int main(int argc, char** argv) {
  hold_signals_of(argc, argv);
  troupe::StandardOutput out;
  const int code = out.finish(troupe::run_to_exit_code(argc, argv));
  if (std::getenv("LD_PRELOAD") != nullptr || std::getenv("CUDA_INJECTION64_PATH") != nullptr) {
    return code;
  }
  std::fflush(nullptr);
  ::_exit(code);
}
