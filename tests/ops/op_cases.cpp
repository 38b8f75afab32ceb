#include "ops/op_cases.h"

namespace tessera::test {

const std::vector<OpCase>& op_cases() {
  static const std::vector<OpCase> all = [] {
    std::vector<OpCase> rows;
    for (auto part : {pointwise_cases, product_cases, composite_cases, indexed_cases, shape_cases,
                      ordered_cases, window_cases, layer_cases, attention_cases, variant_cases,
                      routing_cases, loop_cases}) {
      for (OpCase& row : part()) rows.push_back(std::move(row));
    }
    return rows;
  }();
  return all;
}

}  // namespace tessera::test
