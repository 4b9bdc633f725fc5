// troupe completion: what a shell needs to complete verbs, options and recipe fields. Made from the
// verbs themselves.
#include <iostream>
#include <memory>

#include "apps/verbs.h"
#include "troupe/core/check.h"
#include "troupe/train/recipe/key_help.h"

namespace troupe {
namespace {

// "  'data build') words='--set --help' ;;" for each verb and each verb of a verb.
void write_cases(std::ostream& os, const CLI::App& app, const std::string& path) {
  std::string words;
  const auto add = [&](const std::string& word) { words += (words.empty() ? "" : " ") + word; };
  for (const CLI::App* verb : app.get_subcommands({})) add(verb->get_name());
  for (const CLI::Option* option : app.get_options()) {
    for (const std::string& name : option->get_lnames()) add("--" + name);
    for (const std::string& name : option->get_snames()) add("-" + name);
  }
  os << "    '" << path << "') words='" << words << "' ;;\n";
  for (const CLI::App* verb : app.get_subcommands({})) {
    write_cases(os, *verb, path.empty() ? verb->get_name() : path + ' ' + verb->get_name());
  }
}

void write_bash(std::ostream& os, const CLI::App& app) {
  os << "# Completion of troupe for bash: source <(troupe completion bash)\n"
        "_troupe() {\n"
        "  local word=\"${COMP_WORDS[COMP_CWORD]}\" before=\"${COMP_WORDS[COMP_CWORD-1]}\"\n"
        "  local path='' words='' i\n"
        "  COMPREPLY=()\n"
        "  if [ \"$before\" = --set ] || { [ \"$before\" = explain ]; }; then\n"
        "    words='";
  for (const FieldInfo& field : recipe_fields()) {
    if (field.path.find('[') == std::string::npos) os << field.path << ' ';
  }
  os << "'\n"
        "    COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
        "    [ \"$before\" = --set ] && COMPREPLY=(\"${COMPREPLY[@]/%/=}\")\n"
        "    compopt -o nospace 2>/dev/null\n"
        "    return\n"
        "  fi\n"
        "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
        "    case \"${COMP_WORDS[i]}\" in -*) break ;; esac\n"
        "    case \"${path:+$path }${COMP_WORDS[i]}\" in\n";
  for (const CLI::App* verb : app.get_subcommands({})) {
    os << "      '" << verb->get_name() << "'";
    for (const CLI::App* inner : verb->get_subcommands({})) {
      os << "|'" << verb->get_name() << ' ' << inner->get_name() << "'";
    }
    os << ") path=\"${path:+$path }${COMP_WORDS[i]}\" ;;\n";
  }
  os << "      *) break ;;\n"
        "    esac\n"
        "  done\n"
        "  case \"$path\" in\n";
  write_cases(os, app, "");
  os << "  esac\n"
        "  COMPREPLY=($(compgen -W \"$words\" -- \"$word\"))\n"
        "}\n"
        "complete -o bashdefault -o default -F _troupe troupe\n";
}

}  // namespace

void add_completion(CLI::App& app, Call&) {
  CLI::App* verb = app.add_subcommand("completion", "prints a shell completion script");
  const auto shell = std::make_shared<std::string>();
  verb->add_option("shell", *shell, "bash or zsh")->required();
  verb->footer("Example: source <(troupe completion bash)   # in ~/.bashrc");
  verb->callback([shell, &app] {
    if (*shell != "bash" && *shell != "zsh") {
      fail(Code::kBadValue, "shell", "must be bash or zsh, not", *shell);
    }
    if (*shell == "zsh") std::cout << "autoload -U +X bashcompinit && bashcompinit\n";
    write_bash(std::cout, app);
  });
}

}  // namespace troupe
