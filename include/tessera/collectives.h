// The collectives of Programs, as reports, machine profiles and the command line name them. Their
// operands are described in collectives/communicator.h, the bytes they send in collectives/cost.h.
#pragma once

#include <cstddef>
#include <iterator>
#include <optional>
#include <string_view>

namespace tessera {

enum class CollectiveKind {
  all_reduce,
  reduce_scatter,
  all_gather,
  all_to_all,
  exchange,
  broadcast,
  barrier
};

struct CollectiveInfo {
  CollectiveKind kind;
  const char* name;
  bool reduces = false;  ///< has a combiner
  /// The result is the larger operand and its bytes count; false: the input's bytes count.
  bool grows = false;
};

inline constexpr CollectiveInfo kCollectives[] = {
    {.kind = CollectiveKind::all_reduce, .name = "all_reduce", .reduces = true},
    {.kind = CollectiveKind::reduce_scatter, .name = "reduce_scatter", .reduces = true},
    {.kind = CollectiveKind::all_gather, .name = "all_gather", .grows = true},
    {.kind = CollectiveKind::all_to_all, .name = "all_to_all"},
    {.kind = CollectiveKind::exchange, .name = "exchange"},
    {.kind = CollectiveKind::broadcast, .name = "broadcast"},
    {.kind = CollectiveKind::barrier, .name = "barrier"},
};

constexpr const CollectiveInfo& info_of(CollectiveKind kind) {
  return kCollectives[static_cast<size_t>(kind)];
}
constexpr const char* to_string(CollectiveKind kind) { return info_of(kind).name; }
/// The collective called `name`, if there is one.
constexpr std::optional<CollectiveKind> find_collective(std::string_view name) {
  for (const CollectiveInfo& info : kCollectives) {
    if (info.name == name) return info.kind;
  }
  return {};
}

/// Rows are in the order of the enumerators.
static_assert([] {
  for (size_t i = 0; i < std::size(kCollectives); ++i) {
    if (kCollectives[i].kind != static_cast<CollectiveKind>(i)) return false;
  }
  return std::size(kCollectives) == static_cast<size_t>(CollectiveKind::barrier) + 1;
}());

}  // namespace tessera
