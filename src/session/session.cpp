#include "tessera/session.h"

#include "compile/kernel_info.h"
#include "compile/lowering.h"
#include "kernels/common/kernel.h"
#include "session/devices.h"
#include "session/recorder.h"
#include "session/session_state.h"

namespace tessera {

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
  s.mesh = options.mesh;
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
  s.measures = options.profile ? "a profile" : options.trace != nullptr ? "a trace" : "";
  const int threads = threads_for(options.threads_per_rank, cluster);
  const DeviceChoice device = choose_device(options, cluster);
  LowerOptions lowering = lowering_of(options, std::move(seen.functions));
  if (device.cuda) fuse_for_gpu(lowering);
  lowering.workspace_bytes = [=](const Step& step) {
    return workspace_bytes(device, step, threads);
  };
  s.program = lower(graph, lowering);
  s.index_ports(options.guards);
  s.find_unread(graph);
  s.scalars = s.bounds = bounds_of(graph, s.program);
  s.same_sizes = same_sizes_of(graph, s.program);
  s.scalars[1] = static_cast<int64_t>(options.seed);
  s.executors.resize(cluster.local_ranks());
  cluster.run([&](int rank, Communicator& world) {
    require_agreement(s.program, world);
    auto mine = make_device(device, cluster.local_ranks() == cluster.size(), rank, world);
    std::map<int, void*> placed = lent_buffers(device, s.program, rank);
    for (const int p : s.inputs) {  // every rank is lent the same ones
      if (rank == 0) s.given[p] |= placed.contains(s.program.ports[p].view.buffer);
    }
    s.executors[rank] = std::make_unique<Executor>(
        s.program, world.split(0, world.rank()), s.scalars.data(),
        ExecutorOptions{threads, kLeastPartNs, options.profile, options.skip_non_finite,
                        recorder_of(options.trace, world.rank()), std::move(placed)},
        std::move(mine));
  });
  if (!s.program.stored.empty()) s.run_function(s.program.function("init"));
}

Session::~Session() = default;

void Session::State::find_unread(const Graph& graph) {
  for (const Node& node : graph.nodes()) {
    if (node.op != &kInput) continue;
    const Value& x = graph.value(node.out[0]);
    const bool is_read = std::any_of(inputs.begin(), inputs.end(),
                                     [&](int p) { return program.ports[p].name == x.name; });
    if (is_read) continue;
    Port port;
    port.name = x.name;
    port.view.dtype = x.dtype;
    for (const Dim& d : x.shape) {
      const auto scalar = std::find(program.scalars.begin() + 2, program.scalars.end(), d.name);
      const bool varies = d.is_bounded && scalar != program.scalars.end();
      port.dims.push_back(d.name);
      port.sizes.push_back(d.size);
      port.scalars.push_back(varies ? static_cast<int>(scalar - program.scalars.begin()) : -1);
    }
    unread.push_back(std::move(port));
  }
}

void Session::feed_slices(const std::string& input, const std::function<void(const Slice&)>& fill) {
  if (state_->unread_input(input)) return;
  state_->fill(state_->input(input), fill);
  state_->note_given(input);
}

void Session::assign_slices(const std::string& stored,
                            const std::function<void(const Slice&)>& fill) {
  state_->fill(state_->port(stored, state_->program.stored, "parameter or state"), fill);
}

Array Session::shape_of(const std::string& name) const {
  if (const Port* unread = state_->unread_input(name)) return shape_for(*unread, state_->scalars);
  return shape_for(state_->program.ports[state_->readable_port(name)], state_->scalars);
}

void Session::feed(const std::string& input, const Array& whole) {
  if (const Port* unread = state_->unread_input(input))
    return require_matches(*unread, state_->scalars, whole);
  const Port& port = state_->program.ports[state_->input(input)];
  require_matches(port, state_->scalars, whole);
  if (!lies_as(port.dims, whole)) return feed(input, by_name(port.name, port.dims, whole));
  feed_slices(input, [&](const Slice& slice) { copy_in(whole, slice); });
}

void Session::feed(const std::string& input, const ArrayView& whole) {
  if (const Port* unread = state_->unread_input(input))
    return require_matches(*unread, state_->scalars, whole);
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
  const std::vector<size_t>& same = state_->same_sizes;
  for (size_t other = 0; other < same.size(); ++other) {
    if (same[other] == same[static_cast<size_t>(scalar)]) state_->scalars[other] = size;
  }
  for (auto& slices : state_->slices) slices.clear();
}

void Session::set_step(int64_t step) {
  require(step >= 0, "[set_step] step {}; steps are counted from 0", step);
  state_->scalars[0] = step;
}
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
  if (state_->on_host()) state_->note_given(name);  // they are the input itself
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

std::vector<std::string> Session::fallbacks() const {
  return state_->executors[0]->device().fallbacks();
}

std::vector<std::string> Session::stored_names() const {
  std::vector<std::string> names;
  for (int p : state_->program.stored) names.push_back(state_->program.ports[p].name);
  return names;
}

void Session::assign(const std::string& stored, const Array& whole) {
  const int p = state_->port(stored, state_->program.stored, "parameter or state");
  require_matches(state_->program.ports[p], state_->scalars, whole);
  const std::vector<std::string>& dims = state_->program.ports[p].dims;
  for (const Slice& slice : state_->slices_of(p)) {
    lies_as(dims, whole) ? copy_in(whole, slice) : copy_in(by_name(stored, dims, whole), slice);
  }
  state_->write_slices(p);
}

Cluster& Session::cluster() { return state_->cluster; }

}  // namespace tessera
