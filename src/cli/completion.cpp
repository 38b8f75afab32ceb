// The scripts with which bash, zsh and fish complete the command line.
#include <fmt/ranges.h>

#include "base/fail.h"
#include "cli/commands.h"

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

std::vector<CompletedCommand> commands_of(const std::vector<std::string>& models) {
  std::vector<CompletedCommand> commands;
  for (const Command& each : all_commands()) {
    CompletedCommand command{
        each.name, each.help, {}, {{"help", "Prints this help and exits.", false}}};
    if (command.name == "completion") command.words = {"bash", "zsh", "fish"};
    for (const Flag& flag : each.table.rows()) {
      const std::string word = flag.word();
      if (word == "model") command.words = models;
      if (word.starts_with("--"))
        command.options.push_back(
            {word.substr(2), flag.help, !std::holds_alternative<bool*>(flag.target)});
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

struct CompletionFlags : Invocation {
  std::string shell;
  void declare(FlagTable& table) {
    table.add({{"bash|zsh|fish", &shell, kOneProcess, "The shell.", {}, true}});
  }
};

/// Prints the script: commands, their options, and models where a command takes one.
int run_completion(const CompletionFlags& args, const std::vector<ModelSpec>& models) {
  const std::string& shell = args.shell;
  TESSERA_REQUIRE(shell == "bash" || shell == "zsh" || shell == "fish",
                  "there is no completion for '{}'; the shell is bash, zsh or fish", shell);
  std::vector<std::string> names;
  for (const ModelSpec& model : models) names.push_back(model.name);
  const std::vector<CompletedCommand> commands = commands_of(names);
  const std::string script = shell == "bash"  ? bash_script(commands)
                             : shell == "zsh" ? zsh_script(commands)
                                              : fish_script(commands);
  std::fwrite(script.data(), 1, script.size(), stdout);
  return 0;
}

}  // namespace

Command completion_command() {
  return command("completion", "Prints a script that completes commands and options.",
                 "source <(tessera completion bash)     # in ~/.bashrc; zsh: the same\n"
                 "  tessera completion fish | source",
                 Processes::first, run_completion);
}

}  // namespace tessera::cli
