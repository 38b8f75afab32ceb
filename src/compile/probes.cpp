#include "compile/probes.h"

#include <algorithm>
#include <set>

#include "base/fail.h"
#include "ir/needed.h"
#include "ir/source_ops.h"

namespace tessera {

namespace {

/// By value id: true if the function computes the value, outside of loop iterations.
std::vector<char> computed_by(const Graph& graph, const FunctionSpec& f) {
  const std::vector<char> needed = needed_nodes(graph, roots_of(graph, f));
  std::vector<char> computed(graph.values().size(), 0);
  for (size_t v = 0; v < computed.size(); ++v)
    computed[v] = needed[graph.value(static_cast<int>(v)).node] &&
                  graph.producer(static_cast<int>(v)).loop < 0;  // not inside a loop iteration
  return computed;
}

/// Inputs and stored tensors can always be read.
bool can_be_read(const Graph& graph, int value) {
  const Op* op = graph.producer(value).op;
  return op == &kInput || op == &kStored;
}

/// Names, and their scopes.
std::vector<std::string> names_and_scopes(const Graph& graph, const std::vector<char>& known) {
  std::set<std::string> names;
  for (size_t v = 0; v < known.size(); ++v) {
    const std::string& name = graph.value(static_cast<int>(v)).name;
    if (!known[v]) continue;
    names.insert(name);
    for (size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1))
      names.insert(name.substr(0, dot));
  }
  return {names.begin(), names.end()};
}

std::string plain_part(std::string glob) {
  std::erase_if(glob, [](char c) { return c == '*' || c == '?'; });
  while (!glob.empty() && glob.back() == '.') glob.pop_back();
  return glob;
}

void require_matches(const Graph& graph, const std::vector<std::string>& globs,
                     const std::vector<char>& known) {
  for (const std::string& glob : globs) {
    bool any = false;
    for (size_t v = 0; v < known.size() && !any; ++v)
      any = known[v] && glob_match(glob, graph.value(static_cast<int>(v)).name);
    bool in_loop = false;
    for (size_t v = 0; v < known.size() && !any && !in_loop; ++v)
      in_loop = graph.producer(static_cast<int>(v)).loop >= 0 &&
                glob_match(glob, graph.value(static_cast<int>(v)).name);
    TESSERA_REQUIRE(
        any || !in_loop,
        "'{}' is only computed in a loop: it has a value in each layer and microbatch, and none "
        "outside; without loops (--set scan=false microbatches=1) each layer has names of its "
        "own, such as block0",
        glob);
    TESSERA_REQUIRE(any, "no tensor that the model computes or stores matches '{}'{}", glob,
                    suggestion(plain_part(glob), names_and_scopes(graph, known)));
  }
}

/// Functions are called by name.
void require_distinct(const Graph& graph, const std::vector<FunctionSpec>& functions) {
  std::set<std::string> names;
  for (const FunctionSpec& f : functions) {
    TESSERA_REQUIRE(!f.name.empty(), "a function has an empty name; it is run by its name");
    TESSERA_REQUIRE(
        f.name != "init" || graph.stored().empty(),
        "a function is called 'init', as the one that gives parameters their first values; "
        "rename it");
    TESSERA_REQUIRE(names.insert(f.name).second,
                    "two functions are called '{}'; they are run by name, so give each its own",
                    f.name);
    TESSERA_REQUIRE(
        !f.stores_updates() || !updates_of(graph, f).empty(),
        "the function '{}' is to update, and the model has no update; call minimize() or "
        "Graph::update() before the model is compiled",
        f.name);
  }
}

/// A function that was meant to train, and runs without an update, trains nothing.
void require_updates_are_meant(const Graph& graph, const std::vector<FunctionSpec>& functions) {
  if (graph.updates().empty()) return;
  const FunctionSpec* silent = nullptr;
  for (const FunctionSpec& f : functions) {
    if (f.stores_updates()) return;
    if (!f.updates && silent == nullptr) silent = &f;
  }
  if (silent == nullptr) return;
  const auto is_trained = [&](const Update& u) { return graph.find_stored(u.stored)->trainable; };
  const std::vector<Update>& updates = graph.updates();
  auto example = std::find_if(updates.begin(), updates.end(), is_trained);
  if (example == updates.end()) example = updates.begin();
  fail(ErrorKind::usage,
       "no function stores the model's {} updates (that of '{}', {}, is one); write {{\"{}\", "
       "{{...}}, true}} to train, or false there if nothing is to be stored",
       updates.size(), graph.value(example->stored).name,
       graph.producer(example->stored).at.to_string(), silent->name);
}

struct Observer {
  const Graph& graph;
  const CompileOptions& options;
  Observation result = {};
  std::vector<char> known = {};  ///< values of any function, and stored tensors

  void add(FunctionSpec f) {
    const std::vector<char> computed = computed_by(graph, f);
    std::vector<char> wanted(graph.values().size(), 0);
    for (const Tensor& t : f.outputs) wanted[t.id()] = 2;
    auto want = [&](int v) {
      if (!wanted[v] && !can_be_read(graph, v)) wanted[v] = 1;
    };
    for (size_t v = 0; v < computed.size(); ++v) {
      const std::string& name = graph.value(static_cast<int>(v)).name;
      known[v] = known[v] || computed[v];
      const bool kept =
          computed[v] && std::any_of(options.keep.begin(), options.keep.end(),
                                     [&](const std::string& g) { return glob_match(g, name); });
      if (kept) want(static_cast<int>(v));
    }
    for (const Node& node : graph.nodes()) {
      const bool shows = node.op == &kPrint && options.print, tests = node.op == &kCheckFinite;
      if ((!shows && !tests) || node.recompute_group > 0 || !computed[node.in[0]]) continue;
      const Value& x = graph.value(node.in[0]);
      Probe probe{f.name,
                  node.attrs.get<std::string>("label", ""),
                  node.name,
                  node.at.to_string(),
                  node.attrs.get<std::string>("of", x.name),
                  x.name,
                  "",
                  x.shape};
      if (node.in.size() > 1) {
        probe.index = graph.value(node.in[1]).name;
        want(node.in[1]);
      }
      if (shows) want(node.in[0]);
      (shows ? result.prints : result.checks).push_back(std::move(probe));
    }
    const size_t asked = f.outputs.size();
    for (size_t v = 0; v < wanted.size(); ++v) {
      if (wanted[v] == 1) f.outputs.emplace_back(const_cast<Graph*>(&graph), static_cast<int>(v));
    }
    if (f.outputs.size() > asked)
      std::stable_sort(f.outputs.begin(), f.outputs.end(),
                       [](const Tensor& a, const Tensor& b) { return a.id() < b.id(); });
    result.functions.push_back(std::move(f));
  }
};

}  // namespace

Observation observe(const Graph& graph, const CompileOptions& options) {
  require_distinct(graph, options.functions);
  require_updates_are_meant(graph, options.functions);
  Observer observer{graph, options};
  observer.known.assign(graph.values().size(), 0);
  for (const Stored& s : graph.stored()) observer.known[s.value] = 1;
  for (const FunctionSpec& f : options.functions) observer.add(f);
  require_matches(graph, options.keep, observer.known);
  return std::move(observer.result);
}

}  // namespace tessera
