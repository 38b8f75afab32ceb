// What a Session holds.
#pragma once

#include <algorithm>
#include <exception>

#include "base/fail.h"
#include "compile/probes.h"
#include "ir/source_ops.h"
#include "runtime/executor.h"
#include "session/slices.h"
#include "tessera/inspect.h"
#include "tessera/session.h"

namespace tessera {

struct Session::State {
  Cluster& cluster;
  Mesh mesh;
  Program program;
  std::vector<int64_t> scalars;
  std::vector<int64_t> bounds;     ///< of the scalars that are sizes; 0 for others
  std::vector<size_t> same_sizes;  ///< of each scalar the first one that is the same size
  std::vector<std::unique_ptr<Executor>> executors;  // one per local rank
  std::vector<Probe> prints, checks;
  std::vector<Port> unread;  ///< inputs of the graph that no function reads, without memory
  std::function<void(const std::string&)> print;
  // What a step needs is made once, for a step allocates nothing.
  std::vector<int> inputs;                 ///< ports of all functions
  std::vector<char> given;                 ///< per port: an input that has a value
  std::vector<std::vector<int>> readable;  ///< per function: the ports that fetch() reads after it
  std::vector<std::vector<int>> guards;    ///< per function: ports
  std::vector<std::vector<Slice>> slices;  ///< per port, of the local ranks; empty until asked for
  /// Per port and local rank: what the host sees of a GPU's memory.
  std::vector<std::vector<std::vector<std::byte>>> mirrors;
  int last_function = -1;
  bool poisoned = false;
  std::string measures;  ///< "a profile", "a trace" or ""
  std::string skipped;   ///< what Session::skipped() tells

  explicit State(Cluster& c) : cluster(c) {}
  ~State() {
    for (auto& executor : executors) {
      if (executor) executor->device().drain(poisoned || std::uncaught_exceptions() > 0);
    }
  }

  /// Each is an output of one element.
  void require_guards(const std::vector<std::string>& names) const {
    std::vector<std::string> known;
    for (const Function& f : program.functions) {
      for (int p : f.outputs) {
        const Port& port = program.ports[p];
        known.push_back(port.name);
        const bool is_one = std::all_of(port.sizes.begin(), port.sizes.end(),
                                        [](int64_t size) { return size == 1; });
        require(is_one || std::find(names.begin(), names.end(), port.name) == names.end(),
                "guard '{}' has the dims {}; a guard is an output of one element, such as a loss",
                port.name, fmt::join(port.dims, ", "));
      }
    }
    for (const std::string& name : names) {
      require(std::find(known.begin(), known.end(), name) != known.end(),
              "no function has the output '{}', which is to be a guard{}", name,
              suggestion(name, known));
    }
  }

  void index_ports(const std::vector<std::string>& guard_names) {
    require_guards(guard_names);
    for (const Function& f : program.functions)
      inputs.insert(inputs.end(), f.inputs.begin(), f.inputs.end());
    for (const Function& f : program.functions) {
      std::vector<int>& all = readable.emplace_back(f.outputs);
      all.insert(all.end(), program.stored.begin(), program.stored.end());
      all.insert(all.end(), inputs.begin(), inputs.end());
      std::vector<int>& guarded = guards.emplace_back();
      for (int port : f.outputs) {
        const std::string& name = program.ports[port].name;
        if (std::find(guard_names.begin(), guard_names.end(), name) != guard_names.end())
          guarded.push_back(port);
      }
    }
    given.resize(program.ports.size());
    slices.resize(program.ports.size());
    mirrors.resize(program.ports.size());
  }

  static int64_t bytes_of(const Port& port) {
    return port.view.elements() * size_of(port.view.dtype);
  }
  bool on_host() const { return executors[0]->device().is_host(); }
  /// Memory of the host for each slice of a port.
  void make_mirrors(int port, std::vector<Slice>& all) {
    mirrors[port].resize(executors.size());
    for (size_t r = 0; r < all.size(); ++r) {
      mirrors[port][r].resize(static_cast<size_t>(bytes_of(program.ports[port])));
      all[r].data = mirrors[port][r].data();
    }
  }
  /// The slices with what the devices have now; and the other way round.
  const std::vector<Slice>& read_slices(int port) {
    const std::vector<Slice>& all = slices_of(port);
    const Port& p = program.ports[port];
    for (size_t r = 0; r < all.size() && !on_host(); ++r)
      executors[r]->device().read(all[r].data, executors[r]->data(p), bytes_of(p));
    return all;
  }
  void write_slices(int port) {
    const std::vector<Slice>& all = slices_of(port);
    const Port& p = program.ports[port];
    for (size_t r = 0; r < all.size() && !on_host(); ++r)
      executors[r]->device().write(executors[r]->data(p), all[r].data, bytes_of(p));
  }

  void fill(int port, const std::function<void(const Slice&)>& fill) {
    for (const Slice& slice : slices_of(port)) {
      std::memset(slice.data, 0, static_cast<size_t>(bytes_of(program.ports[port])));
      fill(slice);
    }
    write_slices(port);
  }

  int port(const std::string& name, const std::vector<int>& among, const char* what) const {
    for (int p : among) {
      if (program.ports[p].name == name) return p;
    }
    std::vector<std::string> names;
    for (int p : among) names.push_back(program.ports[p].name);
    fail(ErrorKind::usage, "the program has no {} '{}'{}", what, name, suggestion(name, names));
  }
  int input(const std::string& name) const { return port(name, inputs, "input"); }
  /// Functions that read the same input have a port each.
  void note_given(const std::string& name) {
    for (const int p : inputs) given[p] |= program.ports[p].name == name;
  }
  void find_unread(const Graph& graph);
  /// The input called `name`, if no function reads it; else null.
  const Port* unread_input(const std::string& name) const {
    const auto it = std::find_if(unread.begin(), unread.end(),
                                 [&](const Port& port) { return port.name == name; });
    return it == unread.end() ? nullptr : &*it;
  }
  /// `name` is no output of a function that has to run first.
  void require_ran(const std::string& name, const std::vector<int>& readable_now) const {
    auto is_called = [&](int p) { return program.ports[p].name == name; };
    if (std::any_of(readable_now.begin(), readable_now.end(), is_called)) return;
    const bool none = last_function < 0 || program.functions[last_function].name == "init";
    for (const Function& f : program.functions) {
      if (std::none_of(f.outputs.begin(), f.outputs.end(), is_called)) continue;
      const std::string ran =
          none ? "nothing has run yet"
               : fmt::format("what ran last is '{}'", program.functions[last_function].name);
      fail(ErrorKind::usage, "'{}' is made by the function '{}', and {}; run() '{}' first", name,
           f.name, ran, f.name);
    }
  }
  int readable_port(const std::string& name) const {
    if (last_function >= 0) {
      require_ran(name, readable[last_function]);
      return port(name, readable[last_function],
                  "output of the last run, parameter, state or input");
    }
    std::vector<int> all = program.stored;
    all.insert(all.end(), inputs.begin(), inputs.end());
    require_ran(name, all);
    return port(name, all, "parameter, state or input");
  }
  const std::vector<Slice>& slices_of(int port) {
    std::vector<Slice>& all = slices[port];
    if (all.empty()) {
      for (auto& executor : executors)
        all.push_back(slice_of(program, program.ports[port], *executor, scalars));
      if (!on_host()) make_mirrors(port, all);
    }
    return all;
  }
  /// The part of a port that has all of it, if this process has one.
  const Slice* whole_slice(int port) {
    const std::vector<Slice>& all = read_slices(port);
    const auto& axes = program.ports[port].axes;
    if (std::all_of(axes.begin(), axes.end(), [](const auto& a) { return a.empty(); }))
      return &all[0];
    return nullptr;
  }

  /// The check_finite() nodes of a function: their scalars are equal on all ranks.
  void require_finite(int f, Executor& executor) const {
    for (const Probe& p : checks) {
      if (p.function != program.functions[f].name) continue;
      const Port& port = program.ports[readable_port(p.index)];
      double first = 0;
      executor.device().read(&first, executor.data(port), sizeof(first));
      if (first >= kAllFinite) continue;
      std::vector<int64_t> sizes;
      for (const Dim& d : p.shape) sizes.push_back(d.size);
      fail(ErrorKind::usage,
           "[{}] {}: element {} of '{}' is the first that is not finite (step counter {}, {}); "
           "nothing was stored",
           p.node, p.label.empty() ? "check_finite" : p.label,
           index_text(p.shape.names(), sizes, static_cast<int64_t>(first)), p.tensor, scalars[0],
           p.source);
    }
  }

  /// Before a run: throws if there cannot be one.
  void begin(int f) {
    require_usable();
    for (const int p : program.functions[f].inputs) {
      if (!given[p])
        fail(ErrorKind::usage,
             "function '{}' reads the input '{}', which has no value yet; give it one with feed()",
             program.functions[f].name, program.ports[p].name);
    }
    last_function = f;
    skipped.clear();
  }
  void run_function(int f) {
    begin(f);
    on_all([this](Executor& executor) {
      executor.run(last_function, guards[last_function],
                   [this, &executor] { require_finite(last_function, executor); });
    });
    if (executors[0]->skipped().skipped) agree_on_skip();
  }
  void require_usable() const {
    require(!poisoned,
            "this session failed before and cannot run again; make a new one and load the last "
            "checkpoint");
  }
  /// Runs `work` for every local rank; a failure ends the session.
  void on_all(const std::function<void(Executor&)>& work) {
    require_usable();
    try {
      cluster.run([&](int rank, Communicator&) { work(*executors[rank]); });
    } catch (...) {
      poisoned = true;
      cluster.recover();
      throw;
    }
  }
  /// Why a function waits for the device; empty if it does not.
  std::string why_waits(int f) const;

  /// Of what the ranks found the first in the order of steps.
  void agree_on_skip() {
    std::vector<double> steps;
    for (auto& executor : executors) steps.push_back(static_cast<double>(executor->skipped().step));
    const std::vector<double> all = cluster.gather(steps);
    const double first = *std::min_element(all.begin(), all.end());
    std::string mine;
    for (size_t r = 0; r < executors.size() && mine.empty(); ++r) {
      if (steps[r] == first) mine = executors[r]->skipped().message;
    }
    skipped = cluster.first_text(mine);
    if (skipped.empty()) skipped = "an output that must be finite is not; nothing was stored";
  }
};

}  // namespace tessera
