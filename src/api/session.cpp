#include "tessera/session.h"

#include <algorithm>

#include "api/devices.h"
#include "api/kernel_info.h"
#include "api/observe.h"
#include "api/recorder.h"
#include "api/slices.h"
#include "base/fail.h"
#include "ir/source_ops.h"
#include "kernels/kernel.h"
#include "lower/lower.h"
#include "plan/cost.h"
#include "runtime/executor.h"
#include "tessera/inspect.h"

namespace tessera {

struct Session::State {
  Cluster& cluster;
  Program program;
  std::vector<int64_t> scalars;
  std::vector<int64_t> bounds;  ///< of the scalars that are sizes; 0 for others
  std::vector<std::unique_ptr<Executor>> executors;  // one per local rank
  std::vector<Probe> prints, checks;
  std::function<void(const std::string&)> print;
  // What a step needs is made once, for a step allocates nothing.
  std::vector<int> inputs;                 ///< ports of all functions
  std::vector<std::vector<int>> readable;  ///< per function: the ports that fetch() reads after it
  std::vector<std::vector<int>> guards;    ///< per function: ports
  std::vector<std::vector<Slice>> slices;  ///< per port, of the local ranks; empty until asked for
  /// Per port and local rank: what the host sees of a card's memory.
  std::vector<std::vector<std::vector<std::byte>>> mirrors;
  int last_function = -1;
  bool poisoned = false;

  explicit State(Cluster& c) : cluster(c) {}

  void index_ports(const std::vector<std::string>& guard_names) {
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

  int port(const std::string& name, const std::vector<int>& among, const char* what) const {
    for (int p : among) {
      if (program.ports[p].name == name) return p;
    }
    std::vector<std::string> names;
    for (int p : among) names.push_back(program.ports[p].name);
    fail(ErrorKind::usage, "the program has no {} '{}'{}", what, name, suggestion(name, names));
  }
  int input(const std::string& name) const { return port(name, inputs, "input"); }
  int readable_port(const std::string& name) const {
    if (last_function >= 0) {
      return port(name, readable[last_function],
                  "output of the last run, parameter, state or input");
    }
    std::vector<int> all = program.stored;
    all.insert(all.end(), inputs.begin(), inputs.end());
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

  void run_function(int f) {
    require(!poisoned,
            "this session failed before and cannot run again; make a new one and load the last "
            "checkpoint");
    last_function = f;
    try {
      cluster.run([this](int rank, Communicator&) {
        Executor& executor = *executors[rank];
        executors[rank]->run(last_function, guards[last_function],
                             [this, &executor] { require_finite(last_function, executor); });
      });
    } catch (...) {
      poisoned = true;
      throw;
    }
  }
};

namespace {

std::string print_line(const Probe& probe, const Array& x) {
  std::string elements;
  const int64_t shown = std::min<int64_t>(x.elements(), 6);
  for (int64_t i = 0; i < shown; ++i) elements += fmt::format("{}{:.6g}", i ? ", " : "", x.at(i));
  return fmt::format("{}{} {} = [{}{}]", probe.label.empty() ? "" : probe.label + ": ",
                     probe.tensor, describe(x), elements, shown < x.elements() ? ", ..." : "");
}

/// Ranks that compiled different programs would wait for each other for ever: rank 0's hash is
/// compared.
void require_agreement(const Program& program, Communicator& world) {
  uint64_t mine = hash(program), first = mine;
  Collective c;
  c.kind = CollectiveKind::broadcast;
  c.dtype = DType::uint8;
  c.out = &first;
  c.count = sizeof(first);
  c.site.text = "comparing programs";
  world.run(c);
  require(first == mine,
          "rank {} compiled another program (hash {:016x}) than rank 0 ({:016x}); all ranks need "
          "the same model, mesh, layout "
          "and version",
          world.rank(), mine, first);
}

}  // namespace

Session::Session(const Graph& graph, Cluster& cluster, const CompileOptions& options)
    : state_(std::make_unique<State>(cluster)) {
  State& s = *state_;
  const int ranks = options.mesh.size();
  require(
      ranks == cluster.size(),
      "mesh '{}' has {} ranks but there are {}: the product of the axis sizes must be the number "
      "of ranks; use --mesh \"data:{}\", or start {} ranks",
      options.mesh.to_string(), ranks, cluster.size(), cluster.size(), ranks);
  Observation seen = observe(graph, options);
  s.prints = std::move(seen.prints);
  s.checks = std::move(seen.checks);
  s.print = options.print;
  const int threads = threads_for(options.threads_per_rank, cluster);
  const DeviceChoice device = choose_device(options.device, cluster);
  LowerOptions lowering{options.mesh,
                        options.layout,
                        std::move(seen.functions),
                        composite_kernels(),
                        [=](const Step& step) { return workspace_bytes(device, step, threads); },
                        {}};
  s.program = lower(graph, lowering);
  s.index_ports(options.guards);
  s.scalars = s.bounds = bounds_of(graph, s.program);
  s.scalars[1] = static_cast<int64_t>(options.seed);
  s.executors.resize(cluster.local_ranks());
  cluster.run([&](int rank, Communicator& world) {
    require_agreement(s.program, world);
    auto mine = make_device(device, cluster.local_ranks() == cluster.size(), world);
    s.executors[rank] =
        std::make_unique<Executor>(s.program, world.split(0, world.rank()), s.scalars.data(),
                                   ExecutorOptions{threads, kLeastPartNs, options.profile,
                                                   recorder_of(options.trace, world.rank())},
                                   std::move(mine));
  });
  if (!s.program.stored.empty()) s.run_function(s.program.function("init"));
}

Session::~Session() = default;

void Session::feed_slices(const std::string& input, const std::function<void(const Slice&)>& fill) {
  const int p = state_->input(input);
  const Port& port = state_->program.ports[p];
  for (const Slice& slice : state_->slices_of(p)) {
    std::memset(slice.data, 0,
                static_cast<size_t>(port.view.elements() * size_of(port.view.dtype)));
    fill(slice);
  }
  state_->write_slices(p);
}

void Session::feed(const std::string& input, const Array& whole) {
  require_matches(state_->program.ports[state_->input(input)], state_->scalars, whole);
  feed_slices(input, [&](const Slice& slice) { copy_in(whole, slice); });
}

void Session::feed(const std::string& input, const ArrayView& whole) {
  require_matches(state_->program.ports[state_->input(input)], state_->scalars, whole);
  feed_slices(input, [&](const Slice& slice) { copy_in(whole, slice); });
}

void Session::set_size(const std::string& dim, int64_t size) {
  const auto& names = state_->program.scalars;
  auto it = std::find(names.begin() + 2, names.end(), dim);
  if (it == names.end()) {
    fail(ErrorKind::usage, "the program has no bounded dim '{}'{}", dim,
         suggestion(dim, {names.begin() + 2, names.end()}));
  }
  const int scalar = static_cast<int>(it - names.begin());
  const int64_t bound = state_->bounds[scalar];
  require(size >= 1 && size <= bound, "dim '{}' cannot have size {}; it is bounded to 1 .. {}", dim,
          size, bound);
  if (state_->scalars[scalar] == size) return;
  state_->scalars[scalar] = size;
  for (auto& slices : state_->slices) slices.clear();
}

void Session::set_step(int64_t step) { state_->scalars[0] = step; }
int64_t Session::step() const { return state_->scalars[0]; }

void Session::run(const std::string& function) {
  const int f = state_->program.function(function);
  state_->run_function(f);
  for (const Probe& p : state_->prints) {
    if (p.function != function) continue;
    const Array x = fetch(p.tensor);
    if (state_->cluster.is_root()) state_->print(print_line(p, x));
  }
  if (state_->program.functions[f].updates) ++state_->scalars[0];
}

Array Session::fetch(const std::string& name) {
  State& s = *state_;
  const int p = s.readable_port(name);
  const Port& port = s.program.ports[p];
  Array whole = array_for(port, s.scalars);
  if (const Slice* slice = s.whole_slice(p)) {
    copy_out(*slice, whole);
    return whole;
  }
  if (s.cluster.local_ranks() == s.cluster.size()) {
    for (const Slice& slice : s.read_slices(p)) {
      if (slice.is_owner) copy_out(slice, whole);
    }
    return whole;
  }
  s.cluster.run([&](int rank, Communicator&) {
    const void* mine = s.read_slices(p)[rank].data;
    gather_whole(s.program, port, *s.executors[rank], mine, s.scalars, whole);
  });
  return whole;
}

double Session::fetch_scalar(const std::string& name) {
  const int p = state_->readable_port(name);
  const Slice* slice = state_->whole_slice(p);
  if (slice && state_->program.ports[p].view.elements() == 1)
    return number_at(slice->data, slice->dtype, 0);
  const Array value = fetch(name);
  require(value.elements() == 1, "'{}' has {} elements; fetch_scalar() reads tensors of one", name,
          value.elements());
  return value.at(0);
}

std::vector<Slice> Session::slices(const std::string& name) {
  return state_->read_slices(state_->readable_port(name));
}

void Session::copy_from(Session& other, const std::string& stored) {
  const int to = state_->port(stored, state_->program.stored, "parameter or state");
  const int from = other.state_->port(stored, other.state_->program.stored, "parameter or state");
  const Port &mine = state_->program.ports[to], &theirs = other.state_->program.ports[from];
  require(mine.axes == theirs.axes && mine.view.sizes == theirs.view.sizes &&
              mine.view.dtype == theirs.view.dtype,
          "'{}' has another layout, size or dtype in the session it is copied from", stored);
  const std::vector<Slice>& source = other.state_->read_slices(from);
  const std::vector<Slice>& target = state_->slices_of(to);
  for (size_t i = 0; i < source.size(); ++i) {
    std::memcpy(target[i].data, source[i].data, static_cast<size_t>(State::bytes_of(mine)));
  }
  state_->write_slices(to);
}

std::string Session::device() const { return state_->executors[0]->device().name(); }

std::vector<std::string> Session::find(const std::string& function, const std::string& glob) const {
  const Program& program = state_->program;
  const Function& f = program.functions[program.function(function)];
  std::vector<std::string> names;
  for (const std::vector<int>& ports : {f.outputs, f.inputs, program.stored}) {
    for (int p : ports) {
      const std::string& name = program.ports[p].name;
      const bool seen = std::find(names.begin(), names.end(), name) != names.end();
      if (!seen && glob_match(glob, name)) names.push_back(name);
    }
  }
  return names;
}

std::vector<std::string> Session::stored_names() const {
  std::vector<std::string> names;
  for (int p : state_->program.stored) names.push_back(state_->program.ports[p].name);
  return names;
}

void Session::assign(const std::string& stored, const Array& whole) {
  const int p = state_->port(stored, state_->program.stored, "parameter or state");
  require_matches(state_->program.ports[p], state_->scalars, whole);
  for (const Slice& slice : state_->slices_of(p)) copy_in(whole, slice);
  state_->write_slices(p);
}

int64_t Session::persistent_bytes() const { return state_->program.persistent_bytes; }
int64_t Session::transient_bytes() const { return state_->program.transient_bytes; }
std::string Session::program_text() const { return to_string(state_->program); }
uint64_t Session::program_hash() const { return hash(state_->program); }
std::vector<StepTime> Session::profile() const {
  std::vector<StepTime> rows;
  const Program& program = state_->program;
  for (size_t f = 0; f < program.functions.size(); ++f) {
    const Function& function = program.functions[f];
    for (size_t i = 0; i < function.steps.size(); ++i) {
      const Step& step = function.steps[i];
      const auto [seconds, runs] =
          state_->executors.at(0)->time_of(static_cast<int>(f), static_cast<int>(i));
      if (runs == 0) continue;
      rows.push_back({function.name, step.origin.name, step.origin.source,
                      step.kind == StepKind::wait ? "wait" : step.kernel, runs, seconds, step.flops,
                      step.kind == StepKind::compute ? bytes_touched(step) : step.bytes});
    }
  }
  return rows;
}

Cluster& Session::cluster() { return state_->cluster; }

int64_t Session::flops(const std::string& function) const {
  int64_t total = 0;
  for (const Step& step : state_->program.functions[state_->program.function(function)].steps)
    total += step.flops;
  return total;
}

}  // namespace tessera
