#include "ops/iterations.h"

#include <utility>

namespace tessera {

void require_made(const char* op, const char* what, const std::vector<Tensor>& made, Loc at) {
  for (size_t i = 0; i < made.size(); ++i)
    TESSERA_REQUIRE(!made[i].empty(),
                    "[{}] {} {} is an empty Tensor; it was never assigned a value ({})", op, what,
                    i, where(at));
}

IterationResults results_of(const std::vector<Tensor>& made, size_t carries, size_t stacked) {
  const auto first = made.begin();
  const auto second = first + static_cast<std::ptrdiff_t>(carries);
  const auto third = second + static_cast<std::ptrdiff_t>(stacked);
  return {{first, second}, {second, third}, {third, made.end()}};
}

void add_iteration(IterationResults& all, IterationResults made, bool is_first, Loc at) {
  for (size_t i = 0; i < made.carries.size(); ++i) {
    TESSERA_REQUIRE(
        made.carries[i].shape() == all.carries[i].shape() &&
            made.carries[i].dtype() == all.carries[i].dtype(),
        "[loop] carry {} is {} {} at the beginning of an iteration and {} {} at its end; they must "
        "agree ({})",
        i, to_string(all.carries[i].dtype()), all.carries[i].shape().to_string(),
        to_string(made.carries[i].dtype()), made.carries[i].shape().to_string(), where(at));
  }
  all.carries = std::move(made.carries);
  for (size_t i = 0; i < made.sums.size(); ++i) {
    if (is_first) {
      all.sums.push_back(made.sums[i]);
    } else {
      PreferScope prefer(made.sums[i].graph(), made.sums[i]);
      all.sums[i] = add(all.sums[i], made.sums[i], at);
    }
  }
}

}  // namespace tessera
