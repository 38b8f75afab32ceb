// The public calls and their checks. A backend only sees collectives whose numbers, ranks and
// operands are valid on this rank. Whether the ranks agree with each other is checked by the
// backend in do_prepare().
#include "collectives/communicator.h"

#include <cmath>
#include <initializer_list>

#include "base/fail.h"
#include "collectives/blocks.h"

namespace tessera {

namespace {

std::string site_of(const Collective& collective) {
  return collective.site.text.empty() ? "" : fmt::format(" ({})", collective.site.text);
}

void require_product(const Collective& c, std::initializer_list<int64_t> factors) {
  int64_t bytes = 1;
  bool zero = false, good = true;
  for (int64_t factor : factors) {
    TESSERA_REQUIRE(factor >= 0, "[{}] a count is {}; counts are 0 or more{}", to_string(c.kind),
                    factor, site_of(c));
    zero = zero || factor == 0;
    if (factor > 0) good = good && !__builtin_mul_overflow(bytes, factor, &bytes);
  }
  TESSERA_REQUIRE(zero || good, "[{}] the operand has more than 2^63 bytes; check the counts{}",
                  to_string(c.kind), site_of(c));
}

void check_counts(const Collective& c, int size) {
  const int64_t bytes = size_of(c.dtype);
  switch (c.kind) {
    case CollectiveKind::all_reduce:
    case CollectiveKind::broadcast:
      return require_product(c, {c.count, bytes});
    case CollectiveKind::reduce_scatter:
    case CollectiveKind::all_gather:
      return require_product(c, {c.outer, c.inner, size, bytes});
    case CollectiveKind::all_to_all:
      return require_product(c, {c.pre, c.s, c.mid, c.c, c.post, size, bytes});
    default:
      return;
  }
}

void check_rows(const Collective& c) {
  if (c.counts == nullptr) return;
  TESSERA_REQUIRE(c.kind == CollectiveKind::all_to_all, "[{}] only an all_to_all has counts{}",
                  to_string(c.kind), site_of(c));
  TESSERA_REQUIRE(
      c.pre == 1 && c.s == 1 && c.mid == 1 && c.c == 1 && c.row > 0 && c.post % c.row == 0,
      "[all_to_all] counts of rows of {} elements in blocks of {} x {} x {} x {} x {}; a block "
      "consists of whole rows{}",
      c.row, c.pre, c.s, c.mid, c.c, c.post, site_of(c));
}

void check_exchange(const Collective& c, int rank, int size) {
  for (const auto* lists : {&c.send, &c.recv}) {
    TESSERA_REQUIRE(
        static_cast<int>(lists->size()) == size,
        "[exchange] {} lists of runs for {} ranks; give one list, perhaps empty, per rank{}",
        lists->size(), size, site_of(c));
    for (const auto& runs : *lists) {
      for (const Run& run : runs) {
        TESSERA_REQUIRE(run.offset >= 0 && run.length >= 0,
                        "[exchange] a run of {} elements at {}{}", run.length, run.offset,
                        site_of(c));
      }
    }
  }
  TESSERA_REQUIRE(
      total(c.send[rank]) == total(c.recv[rank]),
      "[exchange] rank {} sends itself {} elements but expects {}; the totals must be equal{}",
      rank, total(c.send[rank]), total(c.recv[rank]), site_of(c));
}

void check_combiner(const Collective& c) {
  const bool logical = c.combiner == Combiner::any || c.combiner == Combiner::all;
  const bool bytes = c.dtype == DType::bool_ || c.dtype == DType::uint8;
  TESSERA_REQUIRE(!logical || bytes, "[{}] {} takes bool or uint8, not {}; compare with 0 first{}",
                  to_string(c.kind), to_string(c.combiner), to_string(c.dtype), site_of(c));
  const bool arithmetic = c.combiner == Combiner::sum || c.combiner == Combiner::prod;
  TESSERA_REQUIRE(!arithmetic || c.dtype != DType::bool_,
                  "[{}] {} does not take bool; use any or all, or cast to int32{}",
                  to_string(c.kind), to_string(c.combiner), site_of(c));
}

void check_memory(const Collective& c, int rank, int size) {
  const Extent extent = extent_of(c, size, rank);
  const bool reads_in = c.kind != CollectiveKind::broadcast;
  TESSERA_REQUIRE(!reads_in || extent.in == 0 || c.in, "[{}] in is null{}", to_string(c.kind),
                  site_of(c));
  TESSERA_REQUIRE(extent.out == 0 || c.out, "[{}] out is null{}", to_string(c.kind), site_of(c));
  if (!reads_in || extent.in == 0 || extent.out == 0) return;
  if (c.kind == CollectiveKind::all_reduce && c.in == c.out) return;
  const auto in = reinterpret_cast<uintptr_t>(c.in), out = reinterpret_cast<uintptr_t>(c.out);
  const auto bytes = static_cast<uintptr_t>(size_of(c.dtype));
  TESSERA_REQUIRE(in + extent.in * bytes <= out || out + extent.out * bytes <= in,
                  "[{}] in and out overlap; only all_reduce works in place, with in == out{}",
                  to_string(c.kind), site_of(c));
}

}  // namespace

void Communicator::check_operands(const Collective& collective) const {
  check_counts(collective, size_);
  check_rows(collective);
  if (collective.kind == CollectiveKind::all_reduce ||
      collective.kind == CollectiveKind::reduce_scatter) {
    check_combiner(collective);
  }
  if (collective.kind == CollectiveKind::broadcast) {
    TESSERA_REQUIRE(collective.root >= 0 && collective.root < size_,
                    "[broadcast] root {} is not a rank of a group of {}{}", collective.root, size_,
                    site_of(collective));
  }
  if (collective.kind == CollectiveKind::exchange) check_exchange(collective, rank_, size_);
  check_memory(collective, rank_, size_);
}

std::unique_ptr<Operation> Communicator::prepare(const Collective& collective) {
  return prepare(std::vector<Collective>{collective});
}

std::unique_ptr<Operation> Communicator::prepare(const std::vector<Collective>& collectives) {
  TESSERA_REQUIRE(!collectives.empty(), "[prepare] no collective is given");
  for (const Collective& c : collectives) {
    check_operands(c);
    const bool alone = c.kind == CollectiveKind::broadcast || c.kind == CollectiveKind::barrier ||
                       c.counts != nullptr;
    TESSERA_REQUIRE(!alone || collectives.size() == 1,
                    "[{}]{} cannot be one of {} collectives of an operation; prepare it alone{}",
                    to_string(c.kind), c.counts != nullptr ? " with counts" : "",
                    collectives.size(), site_of(c));
  }
  return do_prepare(collectives);
}

void Communicator::run(const Collective& collective) {
  const std::unique_ptr<Operation> operation = prepare(collective);
  operation->start();
  operation->wait();
}

void Communicator::barrier(const CallSite& site) {
  Collective collective;
  collective.site = site;
  run(collective);
}

bool Communicator::on_all(bool mine, const std::string& what) {
  const int64_t here = mine ? 1 : 0;
  int64_t everywhere = 0;
  Collective least;
  least.kind = CollectiveKind::all_reduce;
  least.dtype = DType::int64;
  least.combiner = Combiner::min;
  least.in = &here;
  least.out = &everywhere;
  least.count = 1;
  least.site.text = what;
  run(least);
  return everywhere == 1;
}

std::unique_ptr<Communicator> Communicator::split(int color, int key) {
  std::unique_ptr<Communicator> group = do_split(color, key);
  group->timeout_ = timeout_;
  return group;
}

void* Communicator::allocate(int64_t bytes) {
  TESSERA_REQUIRE(bytes >= 0, "[allocate] {} bytes; give 0 or more", bytes);
  return do_allocate(bytes);
}

void Communicator::set_timeout(double seconds) {
  TESSERA_REQUIRE(
      std::isfinite(seconds) && seconds > 0,
      "[set_timeout] a time-out of {} seconds; it is a positive, finite number of seconds, and a "
      "large one, such as 86400, where nothing should end a wait",
      seconds);
  timeout_ = seconds;
}

}  // namespace tessera
