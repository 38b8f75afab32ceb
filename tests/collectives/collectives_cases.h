// Every collective x sizes x dtypes x memory, against a naive result: one table for ranks that are
// threads and for ranks that are processes.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "collectives/collectives_naive.h"

namespace tessera::collectives_test {

enum class Memory { plain, shared, in_place };

/// Runs a case, a small one three times with other data each time; prints and counts what differs.
inline int check_case(Communicator& group, Collective c, Memory memory, char* arena,
                      int64_t arena_bytes) {
  const int P = group.size(), r = group.rank();
  const int64_t b = size_of(c.dtype);
  const Sizes sizes = sizes_of(c, P, r);
  Bytes plain_in(static_cast<size_t>(sizes.in * b) + 1),
      plain_out(static_cast<size_t>(sizes.out * b) + 1);
  char *in = plain_in.data(), *out = plain_out.data();
  if (memory == Memory::shared && (sizes.in + sizes.out) * b + 64 <= arena_bytes) {
    in = arena + b;
    out = arena + b + sizes.in * b;
  }
  if (memory == Memory::in_place || c.kind == CollectiveKind::broadcast) in = out;
  c.in = in;
  c.out = out;
  const std::unique_ptr<Operation> operation = group.prepare(c);
  int failures = 0;
  const uint32_t rounds = c.count > 1025 ? 1 : 3;
  for (uint32_t seed = 1; seed <= rounds; ++seed) {
    std::vector<Bytes> inputs;
    for (int q = 0; q < P; ++q) inputs.push_back(data_of(c.dtype, q, sizes_of(c, P, q).in, seed));
    std::memset(out, 77, static_cast<size_t>(sizes.out * b));
    if (sizes.in > 0) std::memcpy(in, inputs[r].data(), static_cast<size_t>(sizes.in * b));
    const Bytes want = expected(c, P, r, inputs, Bytes(static_cast<size_t>(sizes.out * b)));
    operation->start();
    operation->wait();
    const bool same = want.empty() || std::memcmp(want.data(), out, want.size()) == 0;
    const bool kept = in == out || sizes.in == 0 ||
                      std::memcmp(in, inputs[r].data(), static_cast<size_t>(sizes.in * b)) == 0;
    if (same && kept) continue;
    ++failures;
    std::fprintf(stderr, "rank %d of %d: %s of %s, memory %d, in %lld, out %lld: %s\n", r, P,
                 to_string(c.kind), to_string(c.dtype), static_cast<int>(memory),
                 static_cast<long long>(sizes.in), static_cast<long long>(sizes.out),
                 same ? "in was changed" : "wrong result");
  }
  return failures;
}

inline std::vector<Collective> table(int P) {
  std::vector<Collective> cases;
  const std::vector<int64_t> counts = {0, 1, 3, 1025, 5000, 70001};
  const DType dtypes[] = {DType::float32, DType::float64, DType::bfloat16, DType::float16,
                          DType::int32,   DType::int64,   DType::uint8,    DType::bool_};
  for (const DType dtype : dtypes) {
    const bool bytes = dtype == DType::uint8 || dtype == DType::bool_;
    std::vector<Combiner> combiners = {Combiner::max, Combiner::min};
    if (dtype != DType::bool_) combiners.insert(combiners.end(), {Combiner::sum, Combiner::prod});
    if (bytes) combiners.insert(combiners.end(), {Combiner::any, Combiner::all});
    for (const int64_t n : counts) {
      if (n > 5000 && dtype != DType::float32 && dtype != DType::bfloat16) continue;
      Collective c;
      c.dtype = dtype;
      c.count = n;
      for (const Combiner combiner : combiners) {
        if (n > 1025 && combiner != combiners.back()) continue;
        c.combiner = combiner;
        c.kind = CollectiveKind::all_reduce;
        cases.push_back(c);
        c.kind = CollectiveKind::reduce_scatter;
        for (const int64_t inner : {int64_t{1}, int64_t{3}, n}) {
          c.inner = inner;
          c.outer = inner == 0 ? 2 : n / inner;
          cases.push_back(c);
        }
      }
      c.kind = CollectiveKind::broadcast;
      for (const int root : {0, P - 1}) {
        c.root = root;
        cases.push_back(c);
      }
      c.kind = CollectiveKind::all_gather;
      for (const int64_t inner : {int64_t{5}, n}) {
        c.inner = inner;
        c.outer = inner == 0 ? 2 : n / inner;
        cases.push_back(c);
      }
      c.kind = CollectiveKind::all_to_all;
      const int64_t shapes[][5] = {
          {1, n, 1, 1, 1}, {2, 3, 1, n / 6, 1}, {3, 1, 2, 2, n / 12}, {1, 2, 5, 1, 7}};
      for (const auto& shape : shapes) {
        if (n > 5000 && shape[3] == 2) continue;
        c.pre = shape[0], c.s = shape[1], c.mid = shape[2], c.c = shape[3], c.post = shape[4];
        for (const bool first : {true, false}) {
          c.split_first = first;
          cases.push_back(c);
        }
      }
    }
  }
  return cases;
}

/// A ring shift with a halo: each rank sends its last `halo` elements to the next, in two runs that
/// the receiver takes as three, and keeps the rest, moved by `halo`.
inline int check_exchange(Communicator& group, int64_t n, int64_t halo) {
  const int P = group.size(), r = group.rank(), next = (r + 1) % P, before = (r + P - 1) % P;
  Collective c;
  c.kind = CollectiveKind::exchange;
  c.dtype = DType::int32;
  std::vector<int32_t> in(static_cast<size_t>(n)), out(static_cast<size_t>(n), -1);
  c.in = in.data();
  c.out = out.data();
  c.send.resize(P);
  c.recv.resize(P);
  const int64_t half = halo / 2, third = halo / 3;
  c.send[r].push_back({0, n - halo});
  c.recv[r].push_back({halo, n - halo});
  c.send[next].push_back({n - halo, half});
  c.send[next].push_back({n - halo + half, halo - half});
  c.recv[before].push_back({0, third});
  c.recv[before].push_back({third, third});
  c.recv[before].push_back({2 * third, halo - 2 * third});
  const std::unique_ptr<Operation> operation = group.prepare(c);
  int failures = 0;
  for (int round = 0; round < 3; ++round) {
    for (int64_t i = 0; i < n; ++i) in[i] = static_cast<int32_t>((r + 1) * 1000003 + i + round);
    operation->start();
    operation->wait();
    for (int64_t i = 0; i < n; ++i) {
      const int64_t want = i < halo ? (before + 1) * 1000003 + n - halo + i + round
                                    : (r + 1) * 1000003 + i - halo + round;
      failures += out[i] != want;
    }
  }
  if (failures)
    std::fprintf(stderr, "rank %d of %d: exchange of %lld: %d wrong\n", r, P, (long long)n,
                 failures);
  return failures;
}

/// Blocks of which as many rows are sent as the counts of each round say: none, some or all. What a
/// sender has behind them must not arrive.
inline int check_counts(Communicator& group, int64_t places, int64_t row, bool first) {
  const int P = group.size(), r = group.rank();
  const int64_t block = places * row;
  std::vector<float> in(static_cast<size_t>(P * block)), out(in.size());
  std::vector<int32_t> counts(static_cast<size_t>(P));
  Collective c;
  c.kind = CollectiveKind::all_to_all;
  c.in = in.data();
  c.out = out.data();
  c.post = block;
  c.split_first = first;
  c.counts = counts.data();
  c.row = row;
  const std::unique_ptr<Operation> operation = group.prepare(c);
  const auto sent = [&](int from, int to, int round) {
    return (from * 5 + to * 3 + round * 7) % (places + 1) * (round % 4 != 3);
  };
  const auto value = [&](int from, int to, int64_t i, int round) {
    return static_cast<float>((from * P + to) * 1000 + i % 997 + round + 1);
  };
  int failures = 0;
  for (int round = 0; round < 12; ++round) {
    for (int q = 0; q < P; ++q) {
      counts[static_cast<size_t>(q)] = static_cast<int32_t>(sent(r, q, round));
      for (int64_t i = 0; i < block; ++i) in[q * block + i] = value(r, q, i, round);
    }
    std::fill(out.begin(), out.end(), -1.0f);
    operation->start();
    if (round % 2) operation->advance();
    operation->wait();
    for (int q = 0; q < P; ++q) {
      for (int64_t i = 0; i < block; ++i) {
        const float want = i < sent(q, r, round) * row ? value(q, r, i, round) : 0.0f;
        failures += out[q * block + i] != want;
      }
    }
  }
  if (failures)
    std::fprintf(stderr, "rank %d of %d: %d elements of counted rows of %lld are wrong\n", r, P,
                 failures, static_cast<long long>(row));
  return failures;
}

/// Operations of two groups in flight at once, many times, waited for in an order that changes.
inline int check_in_flight(Communicator& world, Communicator& group) {
  const int P = world.size(), G = group.size();
  std::vector<float> a(20000), b(20000), c(static_cast<size_t>(G) * 500), d(500), e(300), f(300);
  auto reduce = [](Communicator& where, std::vector<float>& in, std::vector<float>& out) {
    Collective op;
    op.kind = CollectiveKind::all_reduce;
    op.count = static_cast<int64_t>(in.size());
    op.in = in.data();
    op.out = out.data();
    return where.prepare(op);
  };
  std::vector<std::unique_ptr<Operation>> operations;
  operations.push_back(reduce(world, a, b));
  Collective gather;
  gather.kind = CollectiveKind::all_gather;
  gather.inner = static_cast<int64_t>(d.size());
  gather.in = d.data();
  gather.out = c.data();
  operations.push_back(group.prepare(gather));
  operations.push_back(reduce(world, e, f));
  int failures = 0;
  for (int round = 0; round < 60; ++round) {
    std::fill(a.begin(), a.end(), 1.0f + round);
    std::fill(d.begin(), d.end(), 2.0f + round);
    std::fill(e.begin(), e.end(), 3.0f + round);
    for (const auto& operation : operations) operation->start();
    for (int i = 0; i < 3; ++i) operations[(i + round) % 3]->wait();
    failures += b.front() != P * (1.0f + round) || b.back() != b.front();
    failures += c.front() != 2.0f + round || c.back() != c.front();
    failures += f.front() != P * (3.0f + round) || f.back() != f.front();
  }
  if (failures)
    std::fprintf(stderr, "rank %d: %d results of operations in flight are wrong\n", world.rank(),
                 failures);
  return failures;
}

/// Several collectives of one operation, small and large, of several kinds and dtypes, some in
/// place; with and without work between start and wait.
inline int check_together(Communicator& group) {
  const int P = group.size(), r = group.rank();
  std::vector<float> small(5), large(30000), sum(large.size());
  std::vector<double> place(9000);
  std::vector<int32_t> mine(700), all(mine.size() * P), parts(all.size()), part(mine.size());
  auto make = [](CollectiveKind kind, DType dtype, const void* in, void* out, size_t count) {
    Collective c;
    c.kind = kind;
    c.dtype = dtype;
    c.in = in;
    c.out = out;
    c.count = c.inner = static_cast<int64_t>(count);
    return c;
  };
  using enum CollectiveKind;
  const std::unique_ptr<Operation> operation = group.prepare(std::vector<Collective>{
      make(all_reduce, DType::float32, small.data(), small.data(), small.size()),
      make(all_reduce, DType::float32, large.data(), sum.data(), large.size()),
      make(all_gather, DType::int32, mine.data(), all.data(), mine.size()),
      make(all_reduce, DType::float64, place.data(), place.data(), place.size()),
      make(reduce_scatter, DType::int32, parts.data(), part.data(), part.size())});
  int failures = 0;
  for (int round = 0; round < 20; ++round) {
    const float sums = static_cast<float>(P * round + P * (P - 1) / 2);
    std::fill(small.begin(), small.end(), static_cast<float>(round + r));
    std::fill(large.begin(), large.end(), static_cast<float>(round + r));
    std::fill(place.begin(), place.end(), round + r);
    std::fill(mine.begin(), mine.end(), 100 * round + r);
    for (size_t i = 0; i < parts.size(); ++i) parts[i] = static_cast<int32_t>(i) + round;
    operation->start();
    for (int k = 0; k < round; ++k) operation->advance();
    operation->wait();
    failures += small.front() != sums || small.back() != sums;
    failures += sum.front() != sums || sum.back() != sums || large.back() != round + r;
    failures += place.front() != sums || place.back() != sums;
    for (int q = 0; q < P; ++q) failures += all[q * mine.size() + 699] != 100 * round + q;
    failures += part.front() != P * (r * 700 + round) || part.back() != part.front() + P * 699;
  }
  if (failures)
    std::fprintf(stderr, "rank %d of %d: %d results of one operation are wrong\n", r, P, failures);
  return failures;
}

/// Small broadcasts from each root and shifts around the ring, many times: what some ranks are
/// ahead of others in. Ranks dawdle in turn, so that each is once far behind.
inline int check_ahead(Communicator& group, int64_t count) {
  const int P = group.size(), r = group.rank();
  std::vector<int32_t> sent(static_cast<size_t>(count)), got(sent.size()), told(sent.size());
  std::vector<std::unique_ptr<Operation>> broadcasts;
  for (int root = 0; root < P; ++root) {
    Collective c;
    c.kind = CollectiveKind::broadcast;
    c.dtype = DType::int32;
    c.out = told.data();
    c.count = count;
    c.root = root;
    broadcasts.push_back(group.prepare(c));
  }
  Collective c;
  c.kind = CollectiveKind::exchange;
  c.dtype = DType::int32;
  c.in = sent.data();
  c.out = got.data();
  c.send.resize(P);
  c.recv.resize(P);
  c.send[(r + 1) % P].push_back({0, count});
  c.recv[(r + P - 1) % P].push_back({0, count});
  const auto shift = group.prepare(c);
  int failures = 0;
  for (int root = 0; root < P; ++root) {
    for (int round = 0; round < 150; ++round) {
      if (r == (root + round / 50) % P && round % 50 == 0) usleep(3000);
      const int32_t value = 1000 * root + round;
      std::fill(told.begin(), told.end(), r == root ? value : -1);
      broadcasts[root]->start();
      broadcasts[root]->wait();
      failures += told.front() != value || told.back() != value;
    }
    for (int round = 0; round < 150; ++round) {
      if (r == root && round % 50 == 0) usleep(3000);
      std::fill(sent.begin(), sent.end(), 1000 * r + round);
      shift->start();
      shift->wait();
      failures += got.front() != 1000 * ((r + P - 1) % P) + round || got.back() != got.front();
    }
  }
  if (failures)
    std::fprintf(stderr, "rank %d of %d: %d of %lld elements are wrong where ranks are ahead\n", r,
                 P, failures, static_cast<long long>(count));
  return failures;
}

inline int check_group(Communicator& group) {
  constexpr int64_t kArena = 16 << 20;
  char* const arena = static_cast<char*>(group.allocate(kArena));
  int failures = std::any_of(arena, arena + 4096, [](char byte) { return byte != 0; });
  bool shared = false;
  for (const Collective& c : table(group.size())) {
    shared = !shared;
    failures += check_case(group, c, shared ? Memory::shared : Memory::plain, arena, kArena);
    if (c.kind == CollectiveKind::all_reduce)
      failures += check_case(group, c, Memory::in_place, arena, kArena);
  }
  for (const int64_t n : {10, 1000, 50000}) failures += check_exchange(group, n, n / 3);
  for (const int64_t row : {1, 3, 400}) {
    failures += check_counts(group, 5, row, true);
    failures += check_counts(group, 40, row, false);
  }
  failures += check_together(group);
  for (const int64_t n : {1, 500}) failures += check_ahead(group, n);
  group.barrier();
  return failures;
}

/// The whole table on `world` and on groups split from it: the number of wrong results on this
/// rank.
inline int collectives_selftest(Communicator& world) {
  int failures = check_group(world);
  for (const int ways : {2, 3}) {
    if (world.size() < ways) continue;
    // Ranks in reverse, to tell the order of keys from that of ranks.
    const auto group = world.split(world.rank() % ways, -world.rank());
    const int place = (world.size() - 1 - world.rank() % ways) / ways - world.rank() / ways;
    failures += group->rank() != place;
    if (ways == 2) failures += check_group(*group);
    failures += check_in_flight(world, *group);
  }
  world.barrier();
  return failures;
}

}  // namespace tessera::collectives_test
