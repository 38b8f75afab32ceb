// mpi_run P bench_collectives [TRIALS]: microseconds of each collective of float32 on P ranks of
// one host: the calls of MPI itself, ours on the same processes, and ours on P threads of the first
// process, in turn in one run; medians. Bytes are those of the larger operand of a rank.
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "collectives/communicator.h"

namespace {

using tessera::Collective;
using tessera::CollectiveKind;
using tessera::Communicator;
using tessera::Operation;

constexpr std::array kKinds = {CollectiveKind::all_reduce,     CollectiveKind::all_gather,
                               CollectiveKind::reduce_scatter, CollectiveKind::all_to_all,
                               CollectiveKind::broadcast,      CollectiveKind::exchange};

/// The exchange is one with neighbours in a ring.
const char* label(CollectiveKind kind) {
  return kind == CollectiveKind::exchange ? "permute" : to_string(kind);
}

struct Case {
  CollectiveKind kind;
  int64_t elements = 1;  ///< of the larger operand
};

/// Elements of one of P equal parts; the operand is P of them.
int64_t part_of(const Case& c, int ranks) { return std::max<int64_t>(1, c.elements / ranks); }

Collective collective_of(const Case& c, int ranks, int rank, float* in, float* out) {
  Collective result;
  result.in = in;
  result.out = out;
  result.count = c.elements;
  result.inner = part_of(c, ranks);
  result.kind = c.kind;
  if (c.kind == CollectiveKind::all_to_all) result.c = part_of(c, ranks);
  if (c.kind == CollectiveKind::exchange) {
    result.send.resize(ranks);
    result.recv.resize(ranks);
    result.send[(rank + 1) % ranks].push_back({0, c.elements});
    result.recv[(rank + ranks - 1) % ranks].push_back({0, c.elements});
  }
  return result;
}

void call_mpi(const Case& c, int ranks, int rank, float* in, float* out) {
  const int count = static_cast<int>(c.elements), part = static_cast<int>(part_of(c, ranks));
  const MPI_Comm world = MPI_COMM_WORLD;
  switch (c.kind) {
    case CollectiveKind::all_reduce:
      MPI_Allreduce(in, out, count, MPI_FLOAT, MPI_SUM, world);
      break;
    case CollectiveKind::all_gather:
      MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world);
      break;
    case CollectiveKind::reduce_scatter:
      MPI_Reduce_scatter_block(in, out, part, MPI_FLOAT, MPI_SUM, world);
      break;
    case CollectiveKind::all_to_all:
      MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, world);
      break;
    case CollectiveKind::broadcast:
      MPI_Bcast(out, count, MPI_FLOAT, 0, world);
      break;
    default:
      MPI_Sendrecv(in, count, MPI_FLOAT, (rank + 1) % ranks, 0, out, count, MPI_FLOAT,
                   (rank + ranks - 1) % ranks, 0, world, MPI_STATUS_IGNORE);
  }
}

/// Binds this thread to one processor, as the launcher binds processes; -1: to all of them.
void use_processor(int number) {
  const int count = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int i = 0; i < count; ++i) {
    if (number < 0 || i == number % count) CPU_SET(i, &set);
  }
  sched_setaffinity(0, sizeof(set), &set);
}

/// Waits for all processes without using the processor that the threads of the first one need.
void meet_asleep() {
  MPI_Request request;
  MPI_Ibarrier(MPI_COMM_WORLD, &request);
  for (int done = 0; !done; MPI_Test(&request, &done, MPI_STATUS_IGNORE)) usleep(500);
}

double seconds_of(int repeats, const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() / repeats;
}

double on_processes(int repeats, const std::function<void()>& work) {
  work();
  MPI_Barrier(MPI_COMM_WORLD);
  double mine = seconds_of(repeats, work), slowest = 0;
  MPI_Allreduce(&mine, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return slowest;
}

/// Our collective on a world whose ranks have memory that their peers see.
struct Rank {
  Communicator& world;
  float *in, *out;
  std::unique_ptr<Operation> operation;

  Rank(Communicator& w, int64_t elements) : world(w) {
    const int64_t bytes = (elements + w.size()) * 4;
    in = static_cast<float*>(w.allocate(bytes));
    out = static_cast<float*>(w.allocate(bytes));
  }
  void prepare(const Case& c) {
    operation.reset();
    operation = world.prepare(collective_of(c, world.size(), world.rank(), in, out));
  }
  void run() {
    operation->start();
    operation->wait();
  }
};

double on_threads(int repeats, std::vector<std::unique_ptr<Rank>>& ranks, const Case& c) {
  std::vector<double> seconds(ranks.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < ranks.size(); ++r) {
    threads.emplace_back([&, r] {
      use_processor(static_cast<int>(r));
      ranks[r]->prepare(c);
      ranks[r]->run();
      ranks[r]->world.barrier();
      seconds[r] = seconds_of(repeats, [&] { ranks[r]->run(); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return *std::max_element(seconds.begin(), seconds.end());
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

void measure(const Case& c, int trials, int ranks, int rank, Rank& process,
             std::vector<std::unique_ptr<Rank>>& threads, std::vector<float>& in,
             std::vector<float>& out) {
  const int repeats = static_cast<int>(std::clamp<int64_t>((4 << 20) / c.elements, 4, 400));
  std::vector<double> raw, ours, local;
  process.prepare(c);
  for (int trial = 0; trial < trials; ++trial) {
    raw.push_back(on_processes(repeats, [&] { call_mpi(c, ranks, rank, in.data(), out.data()); }));
    ours.push_back(on_processes(repeats, [&] { process.run(); }));
    if (rank == 0) local.push_back(on_threads(repeats, threads, c));
    meet_asleep();
  }
  if (rank != 0) return;
  const double m = median(raw) * 1e6, o = median(ours) * 1e6, t = median(local) * 1e6;
  std::printf("%-15s %9lld B %10.1f %10.1f %10.1f   %6.2f %6.2f\n", label(c.kind),
              static_cast<long long>(4 * c.elements), m, o, t, m / o, m / t);
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  int level = 0, rank = 0, ranks = 1;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_FUNNELED, &level);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const int trials = argc > 1 ? std::atoi(argv[1]) : 9;
  const int64_t most = 4 << 20;
  {
    const auto world = tessera::make_mpi_world();
    Rank process(*world, most);
    std::vector<std::unique_ptr<Communicator>> local;
    std::thread([&] {
      use_processor(-1);
      local = tessera::make_local_world(ranks);
    }).join();
    std::vector<std::unique_ptr<Rank>> threads;
    for (const auto& communicator : local) {
      if (rank == 0) threads.push_back(std::make_unique<Rank>(*communicator, most));
    }
    std::vector<float> in(most + ranks), out(most + ranks);
    if (rank == 0) {
      std::printf("%d ranks; microseconds, and times as fast as MPI\n", ranks);
      std::printf("%-27s %10s %10s %10s   %6s %6s\n", "", "MPI", "processes", "threads", "proc.",
                  "thr.");
    }
    for (const CollectiveKind kind : kKinds) {
      for (const int64_t elements : {1, 256, 4096, 16384, 262144, 4194304})
        measure({kind, elements}, trials, ranks, rank, process, threads, in, out);
    }
  }
  MPI_Finalize();
  return 0;
}
