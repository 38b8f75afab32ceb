// For each tensor, each rank sends a checksum of its part's place and one of its elements. Ranks
// with equal places must have equal elements.
#include <algorithm>
#include <map>

#include "base/crc32c.h"
#include "base/fail.h"
#include "tessera/inspect.h"

namespace tessera {

namespace {

uint32_t place_of(const Slice& slice) {
  return crc32c(slice.valid.data(), slice.valid.size() * sizeof(int64_t),
                crc32c(slice.offset.data(), slice.offset.size() * sizeof(int64_t)));
}

uint32_t elements_of(const Slice& slice) {
  const auto item = static_cast<int64_t>(size_of(slice.dtype));
  const size_t rank = slice.valid.size();
  for (const int64_t v : slice.valid) {
    if (v == 0) return 0;
  }
  const int64_t run = rank == 0 ? 1 : slice.valid[rank - 1];
  std::vector<int64_t> index(rank, 0);
  for (uint32_t crc = 0;;) {
    int64_t at = 0;
    for (size_t d = 0; d < rank; ++d) at += index[d] * slice.strides[d];
    crc = crc32c(static_cast<const std::byte*>(slice.data) + at * item,
                 static_cast<size_t>(run * item), crc);
    size_t d = rank == 0 ? 0 : rank - 1;
    while (d > 0 && ++index[d - 1] == slice.valid[d - 1]) index[--d] = 0;
    if (d == 0) return crc;
  }
}

/// Ranks by the checksum of their elements.
using Copies = std::map<double, std::vector<size_t>>;

/// Names the odd ones out where most copies agree.
std::string describe(const std::string& name, const Copies& copies) {
  const auto most = std::max_element(
      copies.begin(), copies.end(),
      [](const auto& a, const auto& b) { return a.second.size() < b.second.size(); });
  std::vector<size_t> others;
  for (const auto& [sum, ranks] : copies) {
    if (sum != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
  }
  std::sort(others.begin(), others.end());
  if (most->second.size() <= others.size())
    return fmt::format("the copies of '{}' on the ranks {} and {} differ", name,
                       std::min(most->second[0], others[0]), std::max(most->second[0], others[0]));
  return fmt::format(
      "the cop{} of '{}' on rank{} {} differ{} from {} equal ones, such as rank {}'s",
      others.size() == 1 ? "y" : "ies", name, others.size() == 1 ? "" : "s",
      fmt::join(others, ", "), others.size() == 1 ? "s" : "", most->second.size(), most->second[0]);
}

}  // namespace

std::string replica_difference(Session& session) {
  const std::vector<std::string> names = session.program().stored_names();
  std::vector<double> mine(static_cast<size_t>(session.cluster().local_ranks()) * names.size() * 2);
  for (size_t i = 0; i < names.size(); ++i) {
    const std::vector<Slice> slices = session.slices(names[i]);
    for (size_t r = 0; r < slices.size(); ++r) {
      mine[(r * names.size() + i) * 2] = place_of(slices[r]);
      mine[(r * names.size() + i) * 2 + 1] = elements_of(slices[r]);
    }
  }
  const std::vector<double> all = session.cluster().gather(mine);
  const size_t ranks = all.size() / (2 * std::max<size_t>(1, names.size()));
  for (size_t i = 0; i < names.size(); ++i) {
    std::map<double, Copies> places;  // by what a rank's part of the tensor is
    for (size_t r = 0; r < ranks; ++r) {
      const size_t at = (r * names.size() + i) * 2;
      places[all[at]][all[at + 1]].push_back(r);
    }
    for (const auto& [place, copies] : places) {
      if (copies.size() > 1) return describe(names[i], copies);
    }
  }
  return "";
}

}  // namespace tessera
