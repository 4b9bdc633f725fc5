// The verbs of the program, a file each. A verb adds its subcommand to the parser; what it does is
// the subcommand's callback, which leaves the exit class in `call.code` and may throw Error.
#pragma once

#include <CLI/App.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace troupe {

struct Call {
  std::vector<std::string> words;  // argv
  int code = 0;
};

void add_bench(CLI::App& app, Call& call);
void add_check(CLI::App& app, Call& call);
void add_completion(CLI::App& app, Call& call);
void add_config(CLI::App& app, Call& call);
void add_convert(CLI::App& app, Call& call);
void add_data(CLI::App& app, Call& call);
void add_diff(CLI::App& app, Call& call);
void add_doctor(CLI::App& app, Call& call);
void add_eval(CLI::App& app, Call& call);
void add_export(CLI::App& app, Call& call);
void add_generate(CLI::App& app, Call& call);
void add_import(CLI::App& app, Call& call);
void add_inspect(CLI::App& app, Call& call);
void add_launch(CLI::App& app, Call& call);
void add_plan(CLI::App& app, Call& call);
void add_report(CLI::App& app, Call& call);
void add_selftest(CLI::App& app, Call& call);
void add_status(CLI::App& app, Call& call);
void add_sweep(CLI::App& app, Call& call);
void add_tokenizer(CLI::App& app, Call& call);
void add_train(CLI::App& app, Call& call);

struct Verb {
  std::string_view name;
  void (*add)(CLI::App& app, Call& call);
};
inline constexpr Verb kVerbs[] = {
    {"train", add_train},   {"launch", add_launch},       {"sweep", add_sweep},
    {"check", add_check},   {"generate", add_generate},   {"eval", add_eval},
    {"report", add_report}, {"status", add_status},       {"config", add_config},
    {"plan", add_plan},     {"bench", add_bench},         {"convert", add_convert},
    {"data", add_data},     {"tokenizer", add_tokenizer}, {"import", add_import},
    {"export", add_export}, {"inspect", add_inspect},     {"diff", add_diff},
    {"doctor", add_doctor}, {"selftest", add_selftest},   {"completion", add_completion}};

}  // namespace troupe
