// Thread ranks are a pool of threads that run one piece of work at a time, each on its own
// communicator; under MPI the calling thread is the one local rank.
#include "tessera/cluster.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <string_view>
#include <thread>

#include "base/crc32c.h"
#include "base/env.h"
#include "base/fail.h"
#include "base/pauses.h"
#include "base/threads.h"
#include "base/thrown.h"
#include "collectives/communicator.h"
#include "collectives/mpi_api.h"
#include "session/cluster_internals.h"
#include "tessera/interop/mpi_library.h"

namespace tessera {

namespace {
/// Without spaces and the zero at the end, which bindings keep or strip.
std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.back() <= ' ') text.remove_suffix(1);
  return text;
}

/// "Open MPI v4.1.4" of what MPI_Get_library_version says.
std::string first_line(const std::string& library) {
  return library.empty() ? "an unknown MPI" : library.substr(0, library.find_first_of(",\n"));
}

std::string message_of(const std::exception_ptr& error) {
  try {
    std::rethrow_exception(error);
  } catch (...) {
    return thrown_text();
  }
}
}  // namespace

struct Cluster::State {
  explicit State(std::vector<std::unique_ptr<Communicator>> of_ranks)
      : worlds(std::move(of_ranks)), activities(worlds.size()) {}
  std::vector<std::unique_ptr<Communicator>> worlds;  // one per local rank
  const pid_t process = getpid();                     // a fork of it has none of the threads
  std::vector<std::thread> pool;                      // empty with one local rank
  std::deque<RankActivity> activities;                // one per local rank
  std::mutex mutex;
  std::condition_variable wake, done;
  const std::function<void(int, Communicator&)>* work = nullptr;
  int64_t round = 0;
  int running = 0;
  bool stop = false;
  std::exception_ptr first_error;
  bool has_cause = false;
  std::string abandoned;      ///< the step in which a rank's thread was left, or ""
  bool failed_alike = false;  ///< the last run ended with an error that all processes throw
  int exceptions = std::uncaught_exceptions();
  std::atomic<std::thread::id> caller = {};  ///< the thread whose work runs, if any does
  /// gather() of so many numbers a rank, which is prepared once. Of one local rank.
  struct Gather {
    std::vector<double> mine, all;
    std::unique_ptr<Operation> operation;
  };
  std::map<size_t, Gather> gathers;

  ~State() {
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    wake.notify_all();
    for (std::thread& t : pool) t.join();
  }

  void guarded(int rank) {
    activities[rank].note_thread();
    try {
      (*work)(rank, *worlds[rank]);
    } catch (const PeerFailure& e) {
      keep_error(false);
      worlds[rank]->fail(e.what());
    } catch (...) {
      keep_error(true);
      worlds[rank]->fail(thrown_text());
    }
  }

  /// Of several errors a cause rather than what follows from it, and the first of these.
  void keep_error(bool is_cause) {
    std::lock_guard lock(mutex);
    if (first_error && (has_cause || !is_cause)) return;
    first_error = std::current_exception();
    has_cause = is_cause;
  }

  void serve(int rank) {
    int64_t seen = 0;
    while (true) {
      {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || round != seen; });
        if (stop) return;
        seen = round;
      }
      guarded(rank);
      std::lock_guard lock(mutex);
      if (--running == 0) done.notify_all();
    }
  }

  /// Waits until all thread ranks have left the run. One that stays in a step that waits for nobody
  /// is abandoned after the time-out; its peers are told, and get some time to leave.
  void await_ranks(std::unique_lock<std::mutex>& lock, const std::function<void()>& meanwhile);
  std::pair<int, std::string> stuck_rank() const;
  void abandon(std::unique_lock<std::mutex>& lock, int rank, const std::string& what);
};

/// The local rank that has exceeded the time-out in a step that waits for nobody, or -1; and
/// "rank 1 stayed in [my_op] block3 (model.cpp:41) for 120 s".
std::pair<int, std::string> Cluster::State::stuck_rank() const {
  for (size_t r = 0; r < activities.size(); ++r) {
    const RankActivity::Seen seen = activities[r].look();
    if (!seen.is_bounded && seen.seconds > worlds[r]->timeout())
      return {static_cast<int>(r), fmt::format("rank {} stayed in {} for {:.3g} s",
                                               worlds[r]->rank(), seen.step, seen.seconds)};
  }
  return {-1, ""};
}

void Cluster::State::await_ranks(std::unique_lock<std::mutex>& lock,
                                 const std::function<void()>& meanwhile) {
  const double slice = std::min(meanwhile ? 0.1 : 1.0, worlds[0]->timeout() / 20);
  Pauses pauses;
  while (!done.wait_for(lock, std::chrono::duration<double>(slice), [&] { return running == 0; })) {
    if (meanwhile) {
      lock.unlock();
      meanwhile();
      lock.lock();
    }
    if (pauses.running(slice) < worlds[0]->timeout()) continue;
    if (const auto [rank, what] = stuck_rank(); rank >= 0) return abandon(lock, rank, what);
  }
}

void Cluster::State::abandon(std::unique_lock<std::mutex>& lock, int rank,
                             const std::string& what) {
  constexpr auto kSlice = std::chrono::milliseconds(10);
  constexpr int kSlicesToLeave = 200;
  const std::string cause = has_cause ? message_of(first_error) + "; " : "";
  worlds[static_cast<size_t>(rank)]->fail(what);
  for (int i = 0; i < kSlicesToLeave && running > 1; ++i) done.wait_for(lock, kSlice);
  while (running > 0) {
    int left = 0;  // in a step; those between steps are on their way out
    for (RankActivity& activity : activities) left += activity.abandon();
    if (left == running) break;
    done.wait_for(lock, kSlice);
  }
  if (running > 0) {
    abandoned = what;
    stop = true;
    wake.notify_all();
    for (std::thread& t : pool) t.detach();
  }
  std::string text = cause + what;
  if (running > 0)
    text += "; its thread is abandoned with the memory that it uses, and so is this Cluster";
  if (cause.empty()) text += "; if the step is only slow, raise the time-out with set_timeout";
  first_error = std::make_exception_ptr(Error(ErrorKind::comm, text));
}

// An abandoned thread goes on using all of this, and threads that a fork lacks cannot be joined.
void Cluster::Release::operator()(State* state) const {
  if (!state->abandoned.empty() || state->process != getpid()) return;
  if (std::uncaught_exceptions() > state->exceptions && !state->failed_alike) {
    state->worlds[0]->fail(
        "its program left the scope of its Cluster with an exception; see what that process "
        "printed");
  }
  delete state;
}

Cluster::State& ClusterInternals::state(const Cluster& cluster) {
  if (cluster.state_ == nullptr)
    throw NotRun(
        "this Cluster was moved from and has no ranks; a Session keeps the address of its Cluster, "
        "so move a Cluster before Sessions are made, or keep it in a std::unique_ptr");
  return *cluster.state_;
}

RankActivity& ClusterInternals::activity(Cluster& cluster, int local_rank) {
  return state(cluster).activities[static_cast<size_t>(local_rank)];
}

bool ClusterInternals::has_abandoned(const Cluster& cluster) {
  return cluster.state_ != nullptr &&
         (!cluster.state_->abandoned.empty() || cluster.state_->process != getpid());
}

void ClusterInternals::fail_alike(Cluster& cluster, ErrorKind kind, const std::string& message,
                                  ErrorCode code) {
  state(cluster).failed_alike = true;
  throw CommonFailure(kind, message, code);
}

ClusterTurn::ClusterTurn(const Cluster& cluster)
    : ClusterTurn(ClusterInternals::state(cluster).caller) {
  if (const pid_t process = ClusterInternals::state(cluster).process; process != getpid()) {
    throw NotRun(fmt::format(
        "this Cluster is of process {} and this one, {}, is a fork of it, without the threads and "
        "messages of its ranks; make Clusters and Sessions after the fork, or spawn processes",
        process, getpid()));
  }
  if (!is_ours_)
    throw NotRun(
        "another thread runs work on this Cluster; a Cluster and its Sessions are used by one "
        "thread at a time: lock a mutex around the calls, or make a Cluster for each thread");
}

ClusterTurn::ClusterTurn(std::atomic<std::thread::id>& caller) : caller_(caller) {
  std::thread::id before;
  is_taken_ = caller_.compare_exchange_strong(before, std::this_thread::get_id());
  is_ours_ = is_taken_ || before == std::this_thread::get_id();
}

ClusterTurn::~ClusterTurn() {
  if (is_taken_) caller_.store({});
}

Cluster::Cluster(std::unique_ptr<State, Release> state) : state_(std::move(state)) {}
Cluster::Cluster(Cluster&&) noexcept = default;
Cluster& Cluster::operator=(Cluster&&) noexcept = default;
Cluster::~Cluster() = default;

namespace {
/// Threads that are ranks take turns; with more of them than this the others wait too long.
constexpr int kMostOfProcess = 512, kMostOfCore = 256;
}  // namespace

Cluster Cluster::threads(int ranks) {
  TESSERA_REQUIRE(ranks >= 1, "a cluster of {} ranks; it has at least 1", ranks);
  const int cores = usable_cores(), most = std::max(kMostOfProcess, kMostOfCore * cores);
  TESSERA_REQUIRE(
      ranks <= most,
      "{} ranks would be threads of this process, and its {} core(s) take {} at most; give a "
      "smaller mesh, or start processes with mpirun",
      ranks, cores, most);
  return adopt(make_local_world(ranks));
}

Cluster Cluster::adopt(std::vector<std::unique_ptr<Communicator>> worlds) {
  const bool given = !worlds.empty() && std::all_of(worlds.begin(), worlds.end(),
                                                    [](auto& w) { return w != nullptr; });
  const int size = given ? worlds[0]->size() : 0;
  bool in_order = given && (worlds.size() == 1 || std::ssize(worlds) == size);
  for (size_t r = 0; in_order && worlds.size() > 1 && r < worlds.size(); ++r)
    in_order = worlds[r]->rank() == static_cast<int>(r) && worlds[r]->size() == size;
  TESSERA_REQUIRE(
      in_order,
      "[adopt] {} communicator(s) of a group of {} rank(s), or not in order of rank; give the "
      "one of this process, or those of all ranks in order",
      worlds.size(), size);
  std::unique_ptr<State, Release> state(new State(std::move(worlds)));
  const int ranks = static_cast<int>(state->worlds.size());
  for (int r = 0; ranks > 1 && r < ranks; ++r)
    state->pool.push_back(
        start_thread(fmt::format("rank {}", r), [s = state.get(), r] { s->serve(r); }));
  return Cluster(std::move(state));
}

Cluster Cluster::adopt(std::unique_ptr<Communicator> world) {
  std::vector<std::unique_ptr<Communicator>> worlds;
  worlds.push_back(std::move(world));
  return adopt(std::move(worlds));
}

Cluster Cluster::adopt_mpi(const void* comm) {
  TESSERA_REQUIRE(
      comm != nullptr,
      "[adopt_mpi] there is no communicator to adopt: it is MPI_COMM_NULL, or MPI is not "
      "initialized or already finalized; call it between MPI_Init and MPI_Finalize");
  return adopt(tessera::adopt_mpi(comm));
}

Cluster adopt_mpi(const void* comm, const std::string& library) {
  const std::string ours = mpi_api().library();
  if (comm != nullptr && trimmed(library) != trimmed(ours)) {
    fail(ErrorKind::unsupported,
         "[adopt_mpi] the communicator is of {}, but libtessera_mpi.so uses {}; build Tessera with "
         "the program's MPI, or the program with Tessera's",
         first_line(library), first_line(ours));
  }
  return Cluster::adopt_mpi(comm);
}

Cluster Cluster::mpi() { return adopt(make_mpi_world()); }

int launched_ranks() {
  const Environment env = read_environment();
  return env.launched_ranks;
}

Cluster Cluster::from_environment(int ranks) {
  const Environment env = read_environment();
  if (env.launched_ranks == 0) return threads(ranks);
  if (!have_mpi()) {
    TESSERA_REQUIRE(
        env.launched_ranks == 1,
        "{} says this job has {} ranks, but MPI cannot be used, so each process would train "
        "alone: {}; or run without the launcher: ranks are then threads",
        env.launcher_variable, env.launched_ranks, why_no_mpi());
    return threads(ranks);
  }
  Cluster cluster = mpi();
  TESSERA_REQUIRE(
      cluster.size() == env.launched_ranks,
      "{} says this job has {} ranks, but MPI sees {}; the launcher belongs to another MPI: "
      "use the mpirun of {}, "
      "which this build uses, or srun --mpi=pmix",
      env.launcher_variable, env.launched_ranks, cluster.size(), mpi_api().version());
  if (cluster.size() == 1 && ranks > 1) return threads(ranks);
  return cluster;
}

int Cluster::size() const { return ClusterInternals::state(*this).worlds[0]->size(); }
int Cluster::local_ranks() const {
  return static_cast<int>(ClusterInternals::state(*this).worlds.size());
}
bool Cluster::is_root() const { return ClusterInternals::state(*this).worlds[0]->rank() == 0; }
std::string Cluster::backend() const { return ClusterInternals::state(*this).worlds[0]->backend(); }
void Cluster::set_timeout(double seconds) {
  for (auto& world : ClusterInternals::state(*this).worlds) world->set_timeout(seconds);
}

void Cluster::run(const std::function<void(int, Communicator&)>& work) {
  ClusterInternals::run(*this, work, nullptr);
}

void ClusterInternals::run(Cluster& cluster, const std::function<void(int, Communicator&)>& work,
                           const std::function<void()>& meanwhile) {
  Cluster::State& s = state(cluster);
  const ClusterTurn turn(cluster);
  if (!s.abandoned.empty()) {
    tessera::fail(ErrorKind::comm,
                  "this Cluster was given up when {}; make a new one, and new Sessions",
                  s.abandoned);
  }
  s.first_error = nullptr;
  s.has_cause = s.failed_alike = false;
  s.work = &work;
  if (s.pool.empty()) {
    s.guarded(0);
  } else {
    std::unique_lock lock(s.mutex);
    s.running = static_cast<int>(s.pool.size());
    ++s.round;
    s.wake.notify_all();
    s.await_ranks(lock, meanwhile);
  }
  if (s.first_error) std::rethrow_exception(std::exchange(s.first_error, nullptr));
}

std::vector<Cluster::Activity> Cluster::activity() const {
  State& s = ClusterInternals::state(*this);
  std::vector<Activity> all;
  for (size_t r = 0; r < s.activities.size(); ++r) {
    const RankActivity::Seen seen = s.activities[r].look();
    all.push_back({s.worlds[r]->rank(), seen.step, seen.seconds,
                   !seen.step.empty() && seen.is_bounded, seen.thread});
  }
  return all;
}

void Cluster::fail(const std::string& message) {
  ClusterInternals::state(*this).worlds[0]->fail(message);
}

void Cluster::recover() {
  if (state_ == nullptr) return;
  const ClusterTurn turn(state_->caller);
  if (turn.is_ours() && local_ranks() == size() && state_->abandoned.empty())
    state_->worlds[0]->recover();
}

std::vector<std::string> Cluster::hosts() {
  constexpr int64_t kLength = 256;
  std::vector<char> mine(kLength, 0), all(static_cast<size_t>(kLength * size()), 0);
  gethostname(mine.data(), kLength - 1);
  if (local_ranks() == size()) return std::vector<std::string>(size(), mine.data());
  run([&](int, Communicator& world) {
    Collective gather;
    gather.kind = CollectiveKind::all_gather;
    gather.dtype = DType::uint8;
    gather.in = mine.data();
    gather.out = all.data();
    gather.inner = kLength;
    gather.site.text = "names of hosts";
    world.run(gather);
  });
  std::vector<std::string> names;
  for (int r = 0; r < size(); ++r) names.emplace_back(all.data() + r * kLength);
  return names;
}

std::vector<double> Cluster::gather(const std::vector<double>& mine) {
  if (local_ranks() == size()) return mine;
  State::Gather& g = state_->gathers[mine.size()];
  run([&](int, Communicator& world) {
    if (!g.operation) {
      g.mine.resize(mine.size());
      g.all.resize(mine.size() * static_cast<size_t>(world.size()));
      Collective gather;
      gather.kind = CollectiveKind::all_gather;
      gather.dtype = DType::float64;
      gather.in = g.mine.data();
      gather.out = g.all.data();
      gather.inner = std::ssize(mine);
      gather.site.text = "numbers of all ranks";
      g.operation = world.prepare(gather);
    }
    std::copy(mine.begin(), mine.end(), g.mine.begin());
    g.operation->start();
    g.operation->wait();
  });
  return g.all;
}

// All ranks gather the lengths of their texts; the first with one broadcasts it.
std::string Cluster::first_text(const std::string& mine) {
  if (local_ranks() == size()) return mine;
  std::string text = mine;
  run([&](int, Communicator& world) {
    const auto length = static_cast<int64_t>(mine.size());
    std::vector<int64_t> lengths(static_cast<size_t>(world.size()));
    Collective gather;
    gather.kind = CollectiveKind::all_gather;
    gather.dtype = DType::int64;
    gather.in = &length;
    gather.out = lengths.data();
    gather.inner = 1;
    gather.site.text = "agreeing on a text";
    world.run(gather);
    const auto first =
        std::find_if(lengths.begin(), lengths.end(), [](int64_t n) { return n > 0; });
    if (first == lengths.end()) return;
    text.resize(static_cast<size_t>(*first));
    Collective send;
    send.kind = CollectiveKind::broadcast;
    send.dtype = DType::uint8;
    send.out = text.data();
    send.count = *first;
    send.root = static_cast<int>(first - lengths.begin());
    send.site.text = gather.site.text;
    world.run(send);
  });
  return text;
}

// Checksums first: facts agree nearly always, and then one gather of a few bytes says so.
void Cluster::require_same(const std::vector<Fact>& facts) {
  if (local_ranks() == size()) return;
  std::vector<double> sums;
  for (const auto& [name, value] : facts) {
    const std::string text = name + '\0' + value;
    sums.push_back(crc32c(text.data(), text.size()));
  }
  const double of_all = crc32c(sums.data(), sums.size() * sizeof(double));
  const std::vector<double> shorts = gather({of_all, static_cast<double>(facts.size())});
  size_t common = facts.size();
  bool same = true;
  for (size_t r = 0; r < shorts.size(); r += 2) {
    same = same && shorts[r] == shorts[0];
    common = std::min(common, static_cast<size_t>(shorts[r + 1]));
  }
  if (same) return;
  sums.resize(common);
  const std::vector<double> all = gather(sums);
  size_t fact = common, other = 1;  // the ranks 0 and `other` differ in this one
  for (size_t r = 1; r < shorts.size() / 2; ++r) {
    const auto first = all.begin() + static_cast<std::ptrdiff_t>(r * common);
    const auto at = static_cast<size_t>(
        std::mismatch(first, first + static_cast<std::ptrdiff_t>(common), all.begin()).first -
        first);
    if (at < fact || (at == fact && shorts[2 * r + 1] != shorts[1])) {
      fact = at;
      other = r;
    }
  }
  const auto text_of = [&](size_t rank) {
    if (state_->worlds[0]->rank() != static_cast<int>(rank)) return first_text("");
    return first_text(fact < facts.size()
                          ? fmt::format("{} = '{}'", facts[fact].first, facts[fact].second)
                          : "no such thing");
  };
  const std::string here = text_of(0), there = text_of(other);
  ClusterInternals::fail_alike(
      *this, ErrorKind::usage,
      fmt::format(
          "rank 0 has {}, and rank {} has {}; all ranks of a job need the same command line, "
          "files, environment and libraries",
          here, other, there));
}

}  // namespace tessera
