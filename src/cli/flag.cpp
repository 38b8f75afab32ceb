#include "cli/flag.h"

#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cmath>

#include "base/env.h"

namespace tessera::cli {

namespace {

template <class T>
bool reads(const std::string& text, T& value) {
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  return error == std::errc() && stop == end;
}

/// Adds an option for a target of each kind.
struct Adder {
  CLI::App& app;
  const std::string& name;
  const std::string& help;

  CLI::Option* operator()(bool* value) const { return app.add_flag(name, *value, help); }
  CLI::Option* operator()(std::vector<std::string>* values) const {
    return app.add_option(name, *values, help)->take_all();
  }
  CLI::Option* operator()(const Each& each) const {
    return (*this)(each.values)->allow_extra_args(false);
  }
  CLI::Option* operator()(const SetsKey& to) const {
    return app.add_option_function<std::string>(
        name,
        [to](const std::string& value) { to.sets->push_back(std::string(to.key) + "=" + value); },
        help);
  }
  template <class T>
  CLI::Option* operator()(T* value) const {
    return app.add_option(name, *value, help);
  }
};

/// The text of a target of each kind.
struct Shown {
  template <class T>
  std::string operator()(const T* value) const {
    return fmt::format("{}", *value);
  }
  template <class T>
  std::string operator()(const std::optional<T>* value) const {
    return *value ? (*this)(&**value) : "";
  }
  template <class T>
  std::string operator()(const std::vector<T>* values) const {
    return fmt::format("{}", fmt::join(*values, ","));
  }
  std::string operator()(const Each& each) const { return (*this)(each.values); }
  std::string operator()(const SetsKey&) const { return ""; }
};

std::string not_empty(const std::string& text) {
  return text.empty() ? "its value is empty; give one, or leave it out" : "";
}

}  // namespace

Check whole_number(int64_t least, int64_t most) {
  return [least, most](const std::string& text) -> std::string {
    int64_t value = 0;
    if (reads(text, value) && value >= least && value <= most) return "";
    return fmt::format("'{}' is not a whole number {} {}{}", text,
                       most < INT64_MAX ? "from" : "of at least", least,
                       most < INT64_MAX ? fmt::format(" to {}", most) : "");
  };
}

Check finite_number(double least) {
  return [least](const std::string& text) -> std::string {
    double value = 0;
    if (reads(text, value) && std::isfinite(value) && value >= least) return "";
    return fmt::format("'{}' is not a number of at least {}", text, least);
  };
}

Check any_text() {
  return [](std::string&) { return ""; };
}

std::string Flag::word() const {
  const std::string text = name;
  return text.substr(0, text.find(' '));
}

std::string Flag::value() const { return std::visit(Shown(), target); }

void FlagTable::add(const char* heading, const std::vector<Flag>& rows) {
  rows_.insert(rows_.end(), rows.begin(), rows.end());
  headings_.resize(rows_.size(), heading);
}

void FlagTable::add_to(CLI::App& app, bool grouped) const {
  for (size_t i = 0; i < rows_.size(); ++i) {
    const Flag& flag = rows_[i];
    const std::string name = flag.name, word = flag.word();
    CLI::Option* const option = std::visit(Adder{app, word, flag.help}, flag.target);
    option->required(flag.required);
    if (grouped && !headings_[i].empty()) option->group(headings_[i]);
    if (word != name) option->type_name(name.substr(word.size() + 1));
    if (std::holds_alternative<bool*>(flag.target)) continue;
    option->transform(CLI::Validator(flag.check ? flag.check : not_empty, ""));
  }
}

std::vector<Cluster::Fact> FlagTable::facts() const {
  std::vector<Cluster::Fact> facts;
  for (const Flag& flag : rows_) {
    if (!flag.ranks.may_differ) facts.emplace_back(flag.word(), flag.value());
    if (flag.ranks.all_or_none)
      facts.emplace_back(flag.word(), flag.value().empty() ? "not given" : "given");
  }
  return facts;
}

int Command::start(const std::string& program, const std::vector<ModelSpec>& models) const {
  flags->program = program;
  flags->alone = processes == Processes::first;
  flags->agreed = table.facts();
  return flags->alone && read_environment().rank > 0 ? 0 : run(models);
}

}  // namespace tessera::cli
