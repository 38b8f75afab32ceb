#include "cli/completion_script.h"

#include <fmt/ranges.h>

#include "base/fail.h"

namespace tessera::cli {

namespace {

struct CompletedOption {
  std::string name, help;
  bool takes_value;
};
struct CompletedCommand {
  std::string name, help;
  std::vector<std::string> words;  ///< what may follow the command
  std::vector<CompletedOption> options;
};

std::vector<CompletedCommand> commands_of(const CLI::App& app,
                                          const std::vector<std::string>& models) {
  std::vector<CompletedCommand> commands;
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    CompletedCommand command{sub->get_name(), sub->get_description(), {}, {}};
    if (command.name == "completion") command.words = {"bash", "zsh", "fish"};
    for (const CLI::Option* option : sub->get_options()) {
      if (option->get_positional() && option->get_name() == "model") command.words = models;
      for (const std::string& name : option->get_lnames())
        command.options.push_back(
            {name, option->get_description(), option->get_items_expected_max() > 0});
    }
    commands.push_back(std::move(command));
  }
  return commands;
}

/// A text between single quotes, for all three shells: none of them has a way to write ' and \ that
/// the others share, and help needs neither.
std::string shell_quoted(std::string text) {
  for (char& c : text) {
    if (c == '\'' || c == '\\') c = '"';
  }
  return "'" + text + "'";
}

std::string dashed(const CompletedCommand& command) {
  std::string all;
  for (const CompletedOption& o : command.options) all += (all.empty() ? "--" : " --") + o.name;
  return all;
}

std::string bash_script(const std::vector<CompletedCommand>& commands) {
  std::string names, cases;
  for (const CompletedCommand& c : commands) {
    names += (names.empty() ? "" : " ") + c.name;
    cases += fmt::format("    {}) options='{}'; words='{}' ;;\n", c.name, dashed(c),
                         fmt::join(c.words, " "));
  }
  return fmt::format(R"(# . <(tessera completion bash)
_tessera() {{
  local options= words= current="${{COMP_WORDS[COMP_CWORD]}}"
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{}' -- "$current"))
    return
  fi
  case "${{COMP_WORDS[1]}}" in
{}  esac
  [[ $current == -* ]] && words=$options
  ((COMP_CWORD > 2)) && [[ $current != -* ]] && words=
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _tessera tessera
)",
                     names, cases);
}

std::string zsh_script(const std::vector<CompletedCommand>& commands) {
  std::string names, cases;
  for (const CompletedCommand& c : commands) {
    names += fmt::format("    {}\n", shell_quoted(c.name + ":" + c.help));
    cases += fmt::format("    {})\n      words_of=({})\n      options=(\n", c.name,
                         fmt::join(c.words, " "));
    for (const CompletedOption& o : c.options)
      cases += fmt::format("        {}\n", shell_quoted("--" + o.name + ":" + o.help));
    cases += "      ) ;;\n";
  }
  return fmt::format(R"(#compdef tessera
# source <(tessera completion zsh), after compinit
_tessera() {{
  local -a names options words_of
  names=(
{}  )
  if ((CURRENT == 2)); then
    _describe command names
    return
  fi
  case $words[2] in
{}  esac
  if [[ $PREFIX == -* ]]; then
    _describe -o option options
  else
    ((CURRENT == 3)) && compadd -a words_of
    _files
  fi
}}
compdef _tessera tessera
)",
                     names, cases);
}

std::string fish_script(const std::vector<CompletedCommand>& commands) {
  std::string text = "# tessera completion fish | source\n";
  for (const CompletedCommand& c : commands) {
    text += fmt::format("complete -c tessera -n __fish_use_subcommand -f -a {} -d {}\n", c.name,
                        shell_quoted(c.help));
    const std::string after = fmt::format("'__fish_seen_subcommand_from {}'", c.name);
    if (!c.words.empty())
      text += fmt::format("complete -c tessera -n {} -a '{}'\n", after, fmt::join(c.words, " "));
    for (const CompletedOption& o : c.options)
      text += fmt::format("complete -c tessera -n {} -l {}{} -d {}\n", after, o.name,
                          o.takes_value ? " -r" : "", shell_quoted(o.help));
  }
  return text;
}

}  // namespace

std::string completion_script(const std::string& shell, const CLI::App& app,
                              const std::vector<std::string>& models) {
  TESSERA_REQUIRE(shell == "bash" || shell == "zsh" || shell == "fish",
                  "there is no completion for '{}'; the shell is bash, zsh or fish", shell);
  const std::vector<CompletedCommand> commands = commands_of(app, models);
  if (shell == "bash") return bash_script(commands);
  return shell == "zsh" ? zsh_script(commands) : fish_script(commands);
}

}  // namespace tessera::cli
