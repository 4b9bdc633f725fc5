#include "troupe/train/recipe/foreign/shell_started.h"

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <sstream>

namespace troupe {
namespace {

using Words = ShellScope::Words;

std::string_view base_name(std::string_view path) {
  const auto slash = path.rfind('/');
  return slash == std::string_view::npos ? path : path.substr(slash + 1);
}

bool is_one_of(std::string_view word, std::initializer_list<std::string_view> names) {
  return std::find(names.begin(), names.end(), word) != names.end();
}

bool is_shell(std::string_view word) {
  return is_one_of(base_name(word), {"bash", "sh", "zsh"});
}

bool starts_python(std::string_view word) {
  const std::string_view name = base_name(word);
  return name.starts_with("python") || name == "torchrun" || name == "accelerate";
}

// ms-swift's command "megatron sft", whose second word is the program.
bool is_swift(const Words& words, size_t at) {
  return at > 0 && is_one_of(base_name(words[at - 1].text), {"megatron", "swift"}) &&
         is_one_of(words[at].text, {"sft", "pt", "rlhf"});
}

// The file, or the module of "python -m": what only launches another program is none.
auto program_of(const Words& words) {
  bool python = false;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i].text;
    const bool module = i > 0 && python && words[i - 1].text == "-m" &&
                        !word.starts_with("torch.") && word.find('.') != std::string::npos;
    const bool file = word.ends_with(".py") && word.find('=') == std::string::npos;
    if (file || module || is_swift(words, i)) return words.begin() + static_cast<int64_t>(i);
    python |= starts_python(word);
  }
  return words.end();
}

std::string name_of_program(const Words& words, Words::const_iterator program) {
  const auto at = static_cast<size_t>(program - words.begin());
  return is_swift(words, at) ? words[at - 1].text + ' ' + program->text : program->text;
}

bool is_command_option(std::string_view word) {
  return word.starts_with('-') && !word.starts_with("--") && word.ends_with('c');
}

}  // namespace

bool is_idle_command(std::string_view name) {
  return is_one_of(
      name, {"echo", "printf", "set",   "cd",     "mkdir", "cat",  "ls",   "source", ".",
             "pip",  "rm",     "cp",    "mv",     "sleep", "wait", "trap", "ulimit", "sed",
             "find", "chmod",  "touch", "module", "conda", "git",  "read", "tee",    "grep"});
}

bool reads_here_documents(std::string_view name) {
  return is_shell(name) || is_one_of(base_name(name), {"sbatch", "ssh", "srun", "qsub"});
}

std::optional<std::string> text_for_shell(const Words& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i].text;
    const bool wrap = word == "--wrap" && i + 1 < words.size();
    if (wrap || word.starts_with("--wrap=")) {
      return wrap ? words[i + 1].text : word.substr(7);
    }
    if (!is_shell(word)) continue;
    size_t at = i + 1;
    while (at < words.size() && words[at].text.starts_with('-') &&
           !is_command_option(words[at].text))
      ++at;
    if (at + 1 < words.size() && is_command_option(words[at].text)) {
      return words[at + 1].text;
    }
  }
  return std::nullopt;
}

void ShellStarted::add(const Words& words) {
  const auto script = std::find_if(
      words.begin(), words.end(), [](const ShellWord& word) { return word.text.ends_with(".sh"); });
  if (program_of(words) == words.end() && script != words.end()) {
    if (script_.text.empty()) script_ = *script;
    return;
  }
  if (words[0].text != "python" || words.size() > 1) commands_.push_back(words);
}

const Words* ShellStarted::training() const {
  const Words* first = nullptr;
  for (const Words& command : commands_) {
    const auto program = program_of(command);
    if (program == command.end()) continue;
    if (base_name(program->text).find("train") != std::string::npos) return &command;
    if (first == nullptr) first = &command;
  }
  return first;
}

ShellArguments ShellStarted::arguments(const ShellScope& scope) const {
  ShellArguments out;
  if (const Words* const best = training(); best != nullptr) {
    const auto program = program_of(*best);
    out.words.assign(program + 1, best->end());
    out.program = name_of_program(*best, program);
    out.line = program->line;
    return out;
  }
  out.script = script_.text;
  out.line = script_.line;
  for (const Words& command : commands_) {
    out.words.insert(out.words.end(), command.begin(), command.end());
  }
  if (!out.words.empty() || !out.script.empty()) return out;
  for (const std::string& name : scope.arrays()) {
    const Words* const words = scope.find(name);
    if (words != nullptr) out.words.insert(out.words.end(), words->begin(), words->end());
  }
  if (!out.words.empty()) return out;
  std::string names;
  for (const auto& [name, text] : scope.texts_of_flags()) {
    names += (names.empty() ? "" : ", ") + name;
    std::istringstream in(text.text);
    for (std::string word; in >> word;) out.words.push_back({word, text.line});
  }
  if (!names.empty()) out.notes.push_back("no command is named: its flags are those of " + names);
  return out;
}

}  // namespace troupe
