#include "tessera/session.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <set>
#include <utility>

#include "base/crc32c.h"
#include "base/env.h"
#include "base/fail.h"
#include "base/host_memory.h"
#include "base/units.h"
#include "compile/lowering.h"
#include "compile/probes.h"
#include "compile/program_variants.h"
#include "cost/cost.h"
#include "ir/source_ops.h"
#include "session/cluster_internals.h"
#include "session/devices.h"
#include "session/dim_equalities.h"
#include "session/port_slices.h"
#include "session/port_table.h"
#include "session/recorder.h"
#include "session/step_times.h"
#include "session/users_line.h"
#include "tessera/inspect.h"

namespace tessera {

namespace {

/// `which`: the iteration, if it is of one.
std::string print_line(const Probe& probe, const std::string& which, const Array& x) {
  std::string elements;
  const int64_t shown = std::min<int64_t>(x.elements(), 6);
  for (int64_t i = 0; i < shown; ++i) elements += fmt::format("{}{:.6g}", i ? ", " : "", x.at(i));
  return fmt::format("{}{}{} {} = [{}{}]", probe.label.empty() ? "" : probe.label + ": ", probe.of,
                     which, describe(x), elements, shown < x.elements() ? ", ..." : "");
}

/// index_text() with the dims of loops that have no name of the user's.
std::string place_text(std::vector<std::string> dims, const std::vector<int64_t>& sizes,
                       int64_t i) {
  for (std::string& dim : dims) {
    if (dim.starts_with("_trip")) dim = "iteration";
  }
  return index_text(dims, sizes, i);
}

/// A line for each iteration that ran. Those of `all` are along the dims of `ran`, in front.
std::vector<std::string> print_lines(const Probe& probe, const Array& all, const Array& ran) {
  const size_t outer = ran.dims.size();
  Array x(all.dtype, {all.dims.begin() + static_cast<std::ptrdiff_t>(outer), all.dims.end()},
          {all.sizes.begin() + static_cast<std::ptrdiff_t>(outer), all.sizes.end()});
  std::vector<std::string> lines;
  for (int64_t i = 0; i < ran.elements(); ++i) {
    if (ran.at(i) == 0) continue;
    std::memcpy(x.bytes.data(), all.bytes.data() + static_cast<size_t>(i) * x.bytes.size(),
                x.bytes.size());
    lines.push_back(print_line(probe, " " + place_text(ran.dims, ran.sizes, i), x));
  }
  return lines;
}

uint32_t checksum(const std::map<std::string, Array>& arrays) {
  uint32_t sum = 0;
  for (const auto& [name, array] : arrays)
    sum = crc32c(array.bytes.data(), array.bytes.size(), sum);
  return sum;
}

/// The line of each tensor.
std::shared_ptr<const std::map<std::string, std::string>> sources_of(const Graph& graph) {
  auto sources = std::make_shared<std::map<std::string, std::string>>();
  for (const Value& value : graph.values())
    (*sources)[value.name] = graph.nodes()[static_cast<size_t>(value.node)].at.to_string();
  return sources;
}

/// The prices that steps take as their times, if TESSERA_PACED asks for it.
StepPrice pace_on(const Mesh& mesh) {
  const std::string name = paced_machine();
  if (name.empty()) return {};
  const auto machine = std::make_shared<const Machine>(Machine::load(name));
  return [machine, mesh](const Step& step) { return Costs(*machine, mesh).compute(step); };
}

/// The actual sizes of bounded dims, the step counter and the seed: what all ranks' steps read.
/// Behind the scalars of the program are the sizes of dims that it does not need.
struct RunScalars {
  explicit RunScalars(DimEqualities sizes) : values(sizes.bounds), ties(std::move(sizes)) {}

  std::vector<int64_t> values;
  DimEqualities ties;

  /// The values after scalar `which` is set to `size`, and what follows from it.
  std::vector<int64_t> with(size_t which, int64_t size) const;
};

std::vector<int64_t> RunScalars::with(size_t which, int64_t size) const {
  std::vector<int64_t> next = values;
  std::vector<char> is_set(ties.names.size(), 0);
  std::vector<std::pair<size_t, int64_t>> to_set = {{which, size}};
  while (!to_set.empty()) {
    const auto [at, value] = to_set.back();
    to_set.pop_back();
    if (std::exchange(is_set[at], 1)) continue;
    next[at] = value;
    for (const SizeTie& t : ties.ties) {
      if (t.part == at) to_set.push_back({t.whole, value * t.times});
      if (t.whole == at) to_set.push_back({t.part, (value + t.times - 1) / t.times});
    }
  }
  return next;
}

}  // namespace

struct Session::State {
  State(const Graph& graph, Cluster& c, const CompileOptions& options);

  Cluster& cluster;
  Mesh mesh;
  Observation observed;
  std::function<void(const std::string&)> print;
  bool profiles = false;
  Trace* trace = nullptr;
  std::shared_ptr<const std::map<std::string, std::string>> sources;  ///< if there are guards
  DeviceChoice device;
  int threads = 1;
  ProgramVariants variants;
  RunScalars scalars;
  PortTable ports;
  std::unique_ptr<LocalRanks> all_ranks;
  std::unique_ptr<PortSlices> all_slices;
  std::vector<std::string> raised;  ///< what was done about counts above their capacity
  int last_function = -1;
  bool skips_non_finite = false;             ///< else it is an error
  std::function<bool()> interrupted;         ///< of the options
  std::atomic<bool> was_interrupted{false};  ///< for ranks that are threads
  std::string skipped;

  const Program& program() const { return variants.program(); }
  LocalRanks& ranks() const { return *all_ranks; }
  PortSlices& slices() const { return *all_slices; }
  void begin(int f);
  void run(int f);
  void raise_capacity();
  std::string non_finite(int f, Executor& executor) const;
  std::string why_waits(int f) const;
  /// The size of the dim `name` of a tensor that is fed, stored or fetched, or 0.
  int64_t fixed_size(const std::string& name) const;
  const Port& readable(const std::string& name) const {
    return program().ports[ports.readable(name, last_function)];
  }

 private:
  ProgramVariants lower_for(const Graph& graph, CompileOptions options);
  std::unique_ptr<LocalRanks> make_ranks();
  std::function<bool()> asks();
};

ProgramVariants Session::State::lower_for(const Graph& graph, CompileOptions options) {
  options.device = device.cuda ? "cuda" : "cpu";  // it may have been "auto"
  LowerOptions lowering = lowering_of(options, std::move(observed.functions));
  lowering.workspace_bytes = [this](const Step& step) {
    return workspace_bytes(device, step, threads);
  };
  return {graph, std::move(lowering)};
}

/// What the arenas of a Program need. `local`: ranks that are threads of this process.
RankNeeds needs_of(const Program& p, int local) {
  const auto text = [](int64_t bytes) { return bytes_text(static_cast<double>(bytes)); };
  std::string parts = fmt::format("{} of parameters and state, {} that a step uses",
                                  text(p.persistent_bytes), text(p.transient_bytes));
  if (p.offloaded_bytes > 0) parts += fmt::format(", {} offloaded", text(p.offloaded_bytes));
  return {p.persistent_bytes + p.transient_bytes + p.offloaded_bytes, parts,
          local * std::max(1, read_environment().local_ranks), local};
}

Session::State::State(const Graph& graph, Cluster& c, const CompileOptions& options)
    : cluster(c),
      mesh(options.mesh),
      observed(observe(graph, options)),
      print(options.print),
      profiles(options.profile),
      trace(options.trace),
      sources(options.guards.empty() ? nullptr : sources_of(graph)),
      device(choose_device(options, c)),
      threads(threads_for(options.threads_per_rank, c)),
      variants(lower_for(graph, options)),
      scalars(size_ties_of(graph, program())),
      ports(program(), graph, scalars.ties.names, options.guards),
      skips_non_finite(options.skip_non_finite),
      interrupted(options.interrupted) {
  scalars.values[1] = static_cast<int64_t>(options.seed);
  cluster.require_same(
      {{"the compiled Program", fmt::format("hash {:016x}", variants.hash())},
       {"CompileOptions::seed", fmt::format("{}", options.seed)},
       {"the constants", fmt::format("checksum {:08x}", checksum(graph.constants()))}});
  all_ranks = make_ranks();
  all_slices = std::make_unique<PortSlices>(program(), ranks(), scalars.values);
}

/// What ranks ask during a run: the thread that called it, or what that thread has noted.
std::function<bool()> Session::State::asks() {
  if (!interrupted || cluster.local_ranks() == 1) return interrupted;
  return [this] { return was_interrupted.load(std::memory_order_relaxed); };
}

std::unique_ptr<LocalRanks> Session::State::make_ranks() {
  auto made = std::make_unique<LocalRanks>(cluster);
  const std::vector<HostLimit> limits = memory_limits();  // before ranks take any
  made->make([&](int rank, Communicator& world) {
    if (!device.cuda) require_memory(needs_of(program(), cluster.local_ranks()), limits);
    auto mine = make_device(device, cluster.local_ranks() == cluster.size(), rank, world);
    std::map<int, void*> lent = lent_buffers(device, program(), rank);
    if (rank == 0) ports.note_lent(lent);  // every rank is lent the same ones
    return std::make_unique<Executor>(
        program(), world.split(0, world.rank()), scalars.values.data(),
        ExecutorOptions{threads, kLeastPartNs, profiles, recorder_of(trace, world.rank()),
                        &ClusterInternals::activity(cluster, rank), std::move(lent), sources,
                        pace_on(mesh), asks()},
        std::move(mine));
  });
  return made;
}

/// Goes on with the next Program. Takes the parameters, state and inputs along. Collective.
void Session::State::raise_capacity() {
  variants.next();
  std::unique_ptr<LocalRanks> old_ranks;
  try {
    old_ranks = std::exchange(all_ranks, make_ranks());
  } catch (...) {
    variants.back();
    throw;
  }
  const std::unique_ptr<PortSlices> old_slices =
      std::exchange(all_slices, std::make_unique<PortSlices>(program(), ranks(), scalars.values));
  std::set<int> kept(program().stored.begin(), program().stored.end());
  for (const Function& f : program().functions) kept.insert(f.inputs.begin(), f.inputs.end());
  for (const int p : kept) {
    const Port& port = program().ports[static_cast<size_t>(p)];
    const std::vector<Slice>& from = old_slices->read(p);
    const std::vector<Slice>& to = slices().slices(p);
    const auto bytes = static_cast<size_t>(port.view.elements() * size_of(port.view.dtype));
    for (size_t i = 0; i < from.size(); ++i) {
      if (to[i].data != from[i].data) std::memcpy(to[i].data, from[i].data, bytes);
    }
    slices().write(p);
  }
  raised.push_back(fmt::format(
      "step {}: more rows went from one rank to another than dispatch_capacity of the experts "
      "has places for; the step is repeated with {:g} times as many places",
      scalars.values[0], variants.growth()));
}

/// Throws if function `f` cannot run now.
void Session::State::begin(int f) {
  ranks().require_usable();
  ports.require_given(f);
  ports.renew(f);
  last_function = f;
  skipped.clear();
}

void Session::State::run(int f) {
  begin(f);
  was_interrupted = false;
  const auto note = [this] {
    if (interrupted()) was_interrupted = true;
  };
  const auto attempt = [&] {
    ranks().on_all(
        [this](Executor& executor) {
          executor.run(last_function, ports.guards(last_function),
                       [this, &executor] { return non_finite(last_function, executor); });
        },
        interrupted ? std::function<void()>(note) : nullptr);
    return ranks().stopped();
  };
  Executor::Stopped stopped = attempt();
  while (stopped.by == Executor::Stopped::By::capacity) {
    raise_capacity();
    stopped = attempt();
  }
  if (stopped.by == Executor::Stopped::By::nothing) return;
  if (stopped.by == Executor::Stopped::By::guard && skips_non_finite) {
    skipped = stopped.message;
    return;
  }
  const bool found =
      stopped.by == Executor::Stopped::By::guard || stopped.by == Executor::Stopped::By::check;
  ClusterInternals::fail_alike(cluster, ErrorKind::usage, stopped.message,
                               found ? ErrorCode::not_finite : ErrorCode::none);
}

/// What a check_finite() node of a function found, or "". Its scalar is equal on all ranks().
std::string Session::State::non_finite(int f, Executor& executor) const {
  for (const Probe& p : observed.checks) {
    if (p.function != program().functions[f].name) continue;
    double first = 0;
    executor.device().read(&first, executor.data(readable(p.index)), sizeof(first));
    if (first >= kAllFinite) continue;
    std::vector<int64_t> sizes;
    for (const Dim& d : p.shape) sizes.push_back(d.size);
    return fmt::format(
        "[{}] {}: element {} of '{}' is the first that is not finite (step counter {}, {}); "
        "nothing was stored",
        p.node, p.label.empty() ? "check_finite" : p.label,
        place_text(p.shape.names(), sizes, static_cast<int64_t>(first)), p.of, scalars.values[0],
        p.source);
  }
  return "";
}

/// Why a function waits for the device; empty if it does not.
std::string Session::State::why_waits(int f) const {
  const std::string& name = program().functions[static_cast<size_t>(f)].name;
  auto is_of = [&](const Probe& p) { return p.function == name; };
  for (const auto& [probes, what] :
       {std::pair{&observed.prints, "print()"}, std::pair{&observed.checks, "check_finite()"}}) {
    const auto it = std::find_if(probes->begin(), probes->end(), is_of);
    if (it != probes->end())
      return fmt::format("[{}] {} reads its tensor ({})", it->node, what, it->source);
  }
  if (!ports.guards(f).empty())
    return fmt::format("its guard '{}' is read before anything is stored",
                       program().ports[ports.guards(f)[0]].name);
  if (profiles || trace != nullptr)
    return fmt::format("{} of every step is taken", profiles ? "a profile" : "a trace");
  if (has_capacities(program().functions[static_cast<size_t>(f)]))
    return "rows that travel are counted, and repeated with a larger capacity if there are too "
           "many";
  return ranks()[0].why_waits(f);
}

int64_t Session::State::fixed_size(const std::string& name) const {
  for (const Port& port : program().ports) {
    const auto at = std::find(port.dims.begin(), port.dims.end(), name) - port.dims.begin();
    if (at < std::ssize(port.dims)) return port.sizes[static_cast<size_t>(at)];
  }
  return 0;
}

Session::Session(const Graph& graph, Cluster& cluster, const CompileOptions& options, Loc at) {
  at_users_line("Session", at, [&] {
    const int ranks = options.mesh.size();
    TESSERA_REQUIRE(
        ranks == cluster.size(),
        "mesh '{}' has {} ranks but there are {}: the product of the axis sizes must be the number "
        "of ranks; take a mesh such as \"data:{}\", or start {} ranks",
        options.mesh.to_string(), ranks, cluster.size(), cluster.size(), ranks);
    const ClusterTurn turn(cluster);
    state_.reset(new State(graph, cluster, options));
    for (const auto& [name, values] : graph.constants()) feed(name, values);
    if (!state_->program().stored.empty()) state_->run(state_->program().function("init"));
  });
}

Session::~Session() = default;

void Session::Release::operator()(State* state) const {
  if (!ClusterInternals::has_abandoned(state->cluster)) delete state;
}

void Session::feed_slices(const std::string& input, const std::function<void(const Slice&)>& fill,
                          Loc at) {
  at_users_line("feed_slices", at, [&] {
    if (state_->ports.unread_input(input)) return;
    state_->slices().fill(state_->ports.input(input), fill);
    state_->ports.note_given(input);
  });
}

void Session::assign_slices(const std::string& stored,
                            const std::function<void(const Slice&)>& fill, Loc at) {
  at_users_line("assign_slices", at,
                [&] { state_->slices().fill(state_->ports.stored(stored), fill); });
}

Array Session::shape_of(const std::string& name, Loc at) const {
  return at_users_line("shape_of", at, [&] {
    const Port* unread = state_->ports.unread_input(name);
    return shape_for(unread ? *unread : state_->readable(name), state_->scalars.values);
  });
}

void Session::feed(const std::string& input, const Array& whole, Loc at) {
  at_users_line("feed", at, [&] {
    const std::vector<int64_t>& scalars = state_->scalars.values;
    if (const Port* unread = state_->ports.unread_input(input))
      return require_matches(*unread, scalars, whole);
    const Port& port = state_->program().ports[state_->ports.input(input)];
    require_matches(port, scalars, whole);
    if (!lies_as(port.dims, whole)) return feed(input, by_name(port.name, port.dims, whole), at);
    feed_slices(
        input, [&](const Slice& slice) { copy_in(whole, slice); }, at);
  });
}

void Session::feed(const std::string& input, const ArrayView& whole, Loc at) {
  at_users_line("feed", at, [&] {
    const std::vector<int64_t>& scalars = state_->scalars.values;
    if (const Port* unread = state_->ports.unread_input(input))
      return require_matches(*unread, scalars, whole);
    const int p = state_->ports.input(input);
    require_matches(state_->program().ports[p], scalars, whole);
    Array copy;
    const ArrayView from = apart_from(state_->slices().slices(p), whole, copy);
    feed_slices(
        input, [&](const Slice& slice) { copy_in(from, slice); }, at);
  });
}

void Session::set_size(const std::string& dim, int64_t size, Loc at) {
  at_users_line("set_size", at, [&] {
    RunScalars& scalars = state_->scalars;
    const std::vector<std::string>& names = scalars.ties.names;
    auto it = std::find(names.begin() + 2, names.end(), dim);
    if (it == names.end()) {
      const int64_t fixed = state_->fixed_size(dim);
      fail(ErrorKind::usage, "the program has no bounded dim '{}'{}", dim,
           fixed > 0 ? fmt::format("; its dim '{0}' has the fixed size {1}: a size is set of a dim "
                                   "made with Dim::bounded(\"{0}\", {1})",
                                   dim, fixed)
                     : suggestion(dim, {names.begin() + 2, names.end()}));
    }
    const auto scalar = static_cast<size_t>(it - names.begin());
    const int64_t bound = scalars.ties.bounds[scalar];
    TESSERA_REQUIRE(size >= 1 && size <= bound,
                    "dim '{}' cannot have size {}; it is bounded to 1 .. {}", dim, size, bound);
    if (scalars.values[scalar] == size) return;
    const std::vector<int64_t> next = scalars.with(scalar, size);
    state_->ports.expire(
        fmt::format("the dim '{}' had size {}", dim, scalars.values[scalar]), [&](int other) {
          return next[static_cast<size_t>(other)] != scalars.values[static_cast<size_t>(other)];
        });
    std::copy(next.begin(), next.end(), scalars.values.begin());  // executors read them in place
    state_->slices().resize();
  });
}

void Session::set_step(int64_t step, Loc at) {
  at_users_line("set_step", at, [&] {
    TESSERA_REQUIRE(step >= 0, "step {}; steps are counted from 0", step);
    state_->scalars.values[0] = step;
  });
}
int64_t Session::step() const { return state_->scalars.values[0]; }

void Session::run(const std::string& function, Loc at) {
  at_users_line("run", at, [&] {
    State& s = *state_;
    const ClusterTurn turn(s.cluster);
    const int f = s.program().function(function);
    s.run(f);
    // Before the lines are printed: a callback that throws leaves the step that was stored.
    if (s.program().functions[f].updates) ++s.scalars.values[0];
    for (const Probe& p : s.observed.prints) {
      if (p.function != function) continue;
      const Array x = fetch(p.tensor);
      const std::vector<std::string> lines =
          p.index.empty() ? std::vector{print_line(p, "", x)} : print_lines(p, x, fetch(p.index));
      if (!s.cluster.is_root()) continue;
      for (const std::string& line : lines) s.print(line);
    }
  });
}

void Session::enqueue(const std::string& function, Loc at) {
  at_users_line("enqueue", at, [&] {
    State& s = *state_;
    const ClusterTurn turn(s.cluster);
    if (s.ranks().on_host()) return run(function);  // its errors are those of enqueue()
    const int f = s.program().function(function);
    const std::string why = s.why_waits(f);
    TESSERA_REQUIRE(why.empty(), "'{}' has to wait for the GPU: {}; call run(), or leave that out",
                    function, why);
    s.begin(f);
    s.ranks().on_all([f](Executor& executor) { executor.enqueue(f); });
    if (s.program().functions[static_cast<size_t>(f)].updates) ++s.scalars.values[0];
  });
}

void Session::wait() {
  if (!state_->ranks().on_host())
    state_->ranks().on_all([](Executor& executor) { executor.settle(); });
}

const std::string& Session::skipped() const { return state_->skipped; }

std::vector<double> Session::waited() const {
  std::vector<double> seconds;
  for (const auto& executor : state_->ranks().executors())
    seconds.push_back(executor->collectives().waited());
  return seconds;
}

Array Session::fetch(const std::string& name, Loc at) {
  return at_users_line("fetch", at, [&] {
    State& s = *state_;
    const int p = s.ports.readable(name, s.last_function);
    s.ports.require_current(p);
    const Port& port = s.program().ports[p];
    Array whole = array_for(port, s.scalars.values);
    if (const Slice* slice = s.slices().whole(p)) {
      copy_out(*slice, whole);
      return whole;
    }
    if (s.cluster.local_ranks() == s.cluster.size()) {
      for (const Slice& slice : s.slices().read(p)) {
        if (slice.is_owner) copy_out(slice, whole);
      }
      return whole;
    }
    s.cluster.run([&](int rank, Communicator&) {
      const void* mine = s.slices().read(p)[rank].data;
      gather_whole(s.program(), port, s.ranks()[rank], mine, s.scalars.values, whole);
    });
    return whole;
  });
}

double Session::fetch_scalar(const std::string& name, Loc at) {
  return at_users_line("fetch_scalar", at, [&] {
    const int p = state_->ports.readable(name, state_->last_function);
    state_->ports.require_current(p);
    const Slice* slice = state_->slices().whole(p);
    if (slice && state_->program().ports[p].view.elements() == 1)
      return number_at(slice->data, slice->dtype, 0);
    const Array value = fetch(name, at);
    TESSERA_REQUIRE(value.elements() == 1,
                    "'{}' has {} elements; fetch_scalar() reads tensors of one", name,
                    value.elements());
    return value.at(0);
  });
}

std::vector<Slice> Session::slices(const std::string& name, Loc at) {
  return at_users_line("slices", at, [&] {
    State& s = *state_;
    if (s.ranks().on_host()) s.ports.note_given(name);  // they are the input itself
    const int p = s.ports.readable(name, s.last_function);
    s.ports.require_current(p);
    return s.slices().read(p);
  });
}

void Session::assign(const std::string& stored, const Array& whole, Loc at) {
  at_users_line("assign", at, [&] {
    const int p = state_->ports.stored(stored);
    const Port& port = state_->program().ports[p];
    require_matches(port, state_->scalars.values, whole);
    for (const Slice& slice : state_->slices().slices(p)) {
      lies_as(port.dims, whole) ? copy_in(whole, slice)
                                : copy_in(by_name(stored, port.dims, whole), slice);
    }
    state_->slices().write(p);
  });
}

void Session::assign(const std::string& stored, const ArrayView& whole, Loc at) {
  at_users_line("assign", at, [&] {
    const int p = state_->ports.stored(stored);
    require_matches(state_->program().ports[p], state_->scalars.values, whole);
    const std::vector<Slice>& slices = state_->slices().slices(p);
    Array copy;
    const ArrayView from = apart_from(slices, whole, copy);
    for (const Slice& slice : slices) copy_in(from, slice);
    state_->slices().write(p);
  });
}

void Session::copy_from(Session& other, const std::string& stored, Loc at) {
  at_users_line("copy_from", at, [&] {
    State &s = *state_, &o = *other.state_;
    const int to = s.ports.stored(stored), from = o.ports.stored(stored);
    const Port &mine = s.program().ports[to], &theirs = o.program().ports[from];
    TESSERA_REQUIRE(mine.axes == theirs.axes && mine.view.sizes == theirs.view.sizes &&
                        mine.view.dtype == theirs.view.dtype,
                    "'{}' has another layout, size or dtype in the session it is copied from",
                    stored);
    const std::vector<Slice>& source = o.slices().read(from);
    const std::vector<Slice>& target = s.slices().slices(to);
    const auto bytes = static_cast<size_t>(mine.view.elements() * size_of(mine.view.dtype));
    for (size_t i = 0; i < source.size(); ++i) std::memcpy(target[i].data, source[i].data, bytes);
    s.slices().write(to);
  });
}

CompiledProgram Session::program() const { return CompiledProgram(state_->program()); }
Cluster& Session::cluster() { return state_->cluster; }
std::string Session::device() const { return state_->ranks()[0].device().name(); }
std::vector<std::string> Session::fallbacks() const {
  std::vector<std::string> all = state_->ranks()[0].device().fallbacks();
  all.insert(all.end(), state_->raised.begin(), state_->raised.end());
  return all;
}

std::vector<StepTime> Session::profile() const {
  return step_times(state_->program(), state_->mesh, state_->ranks()[0]);
}

std::vector<KernelReport> Session::kernel_times(const std::string& function,
                                                const Machine& machine) const {
  return tessera::kernel_times(state_->program(), state_->ranks()[0], function,
                               Costs(machine, state_->mesh));
}

std::vector<BucketTime> Session::bucket_times(const Machine* machine) const {
  return tessera::bucket_times(state_->cluster, state_->mesh, state_->program(), state_->ranks(),
                               machine);
}

}  // namespace tessera
