#include "session/port_table.h"

#include <algorithm>

#include "base/fail.h"
#include "ir/source_ops.h"

namespace tessera {

namespace {

bool holds(const std::vector<std::string>& names, const std::string& name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

void require_guards(const Program& program, const std::vector<std::string>& guards) {
  std::vector<std::string> known;
  for (const Function& f : program.functions) {
    for (int p : f.outputs) {
      const Port& port = program.ports[p];
      known.push_back(port.name);
      const bool is_one =
          std::all_of(port.sizes.begin(), port.sizes.end(), [](int64_t size) { return size == 1; });
      TESSERA_REQUIRE(
          is_one || !holds(guards, port.name),
          "guard '{}' has the dims {}; a guard is an output of one element, such as a loss",
          port.name, fmt::join(port.dims, ", "));
    }
  }
  for (const std::string& name : guards) {
    TESSERA_REQUIRE(holds(known, name), "no function has the output '{}', which is to be a guard{}",
                    name, suggestion(name, known));
  }
}

Port unread_port(const std::vector<std::string>& scalars, const Value& x) {
  Port port;
  port.name = x.name;
  port.view.dtype = x.dtype;
  for (const Dim& d : x.shape) {
    const auto scalar = std::find(scalars.begin() + 2, scalars.end(), d.name);
    const bool varies = d.is_bounded && scalar != scalars.end();
    port.dims.push_back(d.name);
    port.sizes.push_back(d.size);
    port.scalars.push_back(varies ? static_cast<int>(scalar - scalars.begin()) : -1);
  }
  return port;
}

}  // namespace

PortTable::PortTable(const Program& program, const Graph& graph,
                     const std::vector<std::string>& scalars,
                     const std::vector<std::string>& guards)
    : program_(program),
      given_(program.ports.size()),
      lent_(program.ports.size()),
      expired_(program.ports.size()) {
  require_guards(program, guards);
  for (const Function& f : program.functions)
    inputs_.insert(inputs_.end(), f.inputs.begin(), f.inputs.end());
  std::vector<int> always = program.stored;
  always.insert(always.end(), inputs_.begin(), inputs_.end());
  for (const Function& f : program.functions) {
    std::vector<int>& all = readable_.emplace_back(f.outputs);
    all.insert(all.end(), always.begin(), always.end());
    std::vector<int>& guarded = guards_.emplace_back();
    for (int port : f.outputs) {
      if (holds(guards, program.ports[port].name)) guarded.push_back(port);
    }
  }
  readable_.push_back(std::move(always));
  for (const Node& node : graph.nodes()) {
    if (node.op != &kInput) continue;
    const Value& x = graph.value(node.out[0]);
    const bool is_read = std::any_of(inputs_.begin(), inputs_.end(),
                                     [&](int p) { return program.ports[p].name == x.name; });
    if (!is_read) unread_.push_back(unread_port(scalars, x));
  }
}

int PortTable::find(const std::string& name, const std::vector<int>& among,
                    const char* what) const {
  for (int p : among) {
    if (program_.ports[p].name == name) return p;
  }
  std::vector<std::string> names;
  for (int p : among) names.push_back(program_.ports[p].name);
  fail(ErrorKind::usage, "the program has no {} '{}'{}", what, name, suggestion(name, names));
}

int PortTable::input(const std::string& name) const { return find(name, inputs_, "input"); }

int PortTable::stored(const std::string& name) const {
  return find(name, program_.stored, "parameter or state");
}

int PortTable::readable(const std::string& name, int last) const {
  const std::vector<int>& now = last < 0 ? readable_.back() : readable_[last];
  auto is_called = [&](int p) { return program_.ports[p].name == name; };
  if (std::none_of(now.begin(), now.end(), is_called)) {
    const bool none = last < 0 || program_.functions[last].kind == FunctionKind::init;
    for (const Function& f : program_.functions) {
      if (std::none_of(f.outputs.begin(), f.outputs.end(), is_called)) continue;
      const std::string ran =
          none ? "nothing has run yet"
               : fmt::format("what ran last is '{}'", program_.functions[last].name);
      fail(ErrorKind::usage, "'{}' is made by the function '{}', and {}; run() '{}' first", name,
           f.name, ran, f.name);
    }
  }
  return find(
      name, now,
      last < 0 ? "parameter, state or input" : "output of the last run, parameter, state or input");
}

void PortTable::require_current(int port) const {
  const bool is_input = std::find(inputs_.begin(), inputs_.end(), port) != inputs_.end();
  TESSERA_REQUIRE(expired_[port].empty() || lent_[port], "'{}' has its value from when {}; {}",
                  program_.ports[port].name, expired_[port],
                  is_input ? "feed() it again after set_size()"
                           : "run() again, or fetch() it before set_size()");
}

const Port* PortTable::unread_input(const std::string& name) const {
  const auto it = std::find_if(unread_.begin(), unread_.end(),
                               [&](const Port& port) { return port.name == name; });
  return it == unread_.end() ? nullptr : &*it;
}

void PortTable::note_given(const std::string& name) {
  for (const int p : inputs_) {
    if (program_.ports[p].name != name) continue;
    given_[p] = true;
    expired_[p].clear();
  }
}

void PortTable::note_lent(const std::map<int, void*>& lent) {
  for (const int p : inputs_) lent_[p] |= lent.contains(program_.ports[p].view.buffer);
}

void PortTable::expire(const std::string& when, const std::function<bool(int)>& is_resized) {
  for (size_t p = 0; p < program_.ports.size(); ++p) {
    const std::vector<int>& scalars = program_.ports[p].scalars;
    const bool resized = std::any_of(scalars.begin(), scalars.end(),
                                     [&](int scalar) { return scalar >= 0 && is_resized(scalar); });
    if (resized && expired_[p].empty()) expired_[p] = when;
  }
}

void PortTable::renew(int function) {
  for (const int p : program_.functions[function].outputs) expired_[p].clear();
}

void PortTable::require_given(int function) const {
  for (const int p : program_.functions[function].inputs) {
    if (lent_[p]) continue;
    if (given_[p] && !expired_[p].empty())
      fail(ErrorKind::usage,
           "function '{}' reads the input '{}', which was fed when {}; feed() it again after "
           "set_size()",
           program_.functions[function].name, program_.ports[p].name, expired_[p]);
    if (!given_[p])
      fail(ErrorKind::usage,
           "function '{}' reads the input '{}', which has no value yet; give it one with feed()",
           program_.functions[function].name, program_.ports[p].name);
  }
}

}  // namespace tessera
