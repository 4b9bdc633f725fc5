// The program `troupe`: verbs, errors, exit classes.
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <new>

#include "apps/verbs.h"
#include "troupe/core/check.h"
#include "troupe/core/cpu.h"
#include "troupe/core/suggest.h"
#include "troupe/train/version.h"

namespace troupe {
namespace {

// "troupe exprot: no such verb. Did you mean export?", where the first word is none.
std::string unknown_verb(const std::vector<std::string>& words) {
  std::vector<std::string_view> verbs;
  for (const Verb& verb : kVerbs) verbs.push_back(verb.name);
  if (words.size() < 2 || words[1].starts_with('-')) return {};
  if (std::find(verbs.begin(), verbs.end(), words[1]) != verbs.end()) return {};
  const std::string guess(nearest(words[1], verbs));
  return "troupe " + words[1] + ": no such verb. " +
         (guess.empty() ? "There are " + joined(verbs) : "Did you mean " + guess + "?");
}

int run(Call& call) {
  CLI::App app(
      "Troupe trains mixture-of-experts language models.\n\n"
      "  troupe check recipe.yaml     all that is wrong with a recipe, before anything runs\n"
      "  troupe train recipe.yaml     trains; the same command goes on after any stop\n"
      "  troupe generate RUN -p TEXT  text from what was trained\n",
      "troupe");
  app.set_version_flag("--version", "troupe " + version() + " (" + commit() + ")");
  app.footer(
      "troupe VERB --help says more. Exit classes: 0 done, 2 usage or recipe, 3 data,\n"
      "4 checkpoint, 5 numbers that are not finite, 6 lost peer, 7 memory, disk or device,\n"
      "70 a fault of the program.");
  app.require_subcommand(1);
  for (const Verb& verb : kVerbs) verb.add(app, call);
  std::vector<std::string> words(call.words.rbegin(), call.words.rend() - 1);
  try {
    app.parse(words);
  } catch (const CLI::ParseError& error) {
    const std::string wrong = unknown_verb(call.words);
    if (error.get_exit_code() == 0 || wrong.empty()) return app.exit(error) == 0 ? 0 : 2;
    std::cerr << wrong << '\n';
    return 2;
  }
  return call.code;
}

}  // namespace
}  // namespace troupe

int main(int argc, char** argv) {
  troupe::Call call{std::vector<std::string>(argv, argv + argc)};
  try {
    troupe::check_cpu();
    return troupe::run(call);
  } catch (const troupe::Error& error) {
    std::cerr << error.what() << '\n';
    return static_cast<int>(error.exit_class());
  } catch (const std::bad_alloc&) {
    std::cerr << "out of memory\n";
    return static_cast<int>(troupe::ExitClass::kResource);
  } catch (const std::exception& error) {
    std::cerr << "a fault of the program, troupe " << troupe::version() << " (" << troupe::commit()
              << "): " << error.what() << "\nPlease report it with the command and the recipe.\n";
    return static_cast<int>(troupe::ExitClass::kBug);
  }
}
