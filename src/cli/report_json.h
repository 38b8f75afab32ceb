// Reports as JSON: an object of their fields, by name.
#pragma once

#include <nlohmann/json.hpp>

#include "tessera/cli.h"
#include "tessera/explain.h"
#include "tessera/plan.h"
#include "tessera/simulate.h"

/// Sets fields of a JSON object to those of `from`.
#define TESSERA_JSON_FIELDS(to, from, ...)                                   \
  {                                                                          \
    nlohmann::json& nlohmann_json_j = to;                                    \
    const auto& nlohmann_json_t = from;                                      \
    NLOHMANN_JSON_EXPAND(NLOHMANN_JSON_PASTE(NLOHMANN_JSON_TO, __VA_ARGS__)) \
  }
/// Defines the conversion of a type with these fields.
#define TESSERA_JSON(Type, ...)                                  \
  inline void to_json(nlohmann::json& json, const Type& value) { \
    TESSERA_JSON_FIELDS(json, value, __VA_ARGS__)                \
  }

namespace tessera {

TESSERA_JSON(CollectiveReport, kind, tensor, source, rule, axes, ranks, bytes, times, seconds,
             exposed)
TESSERA_JSON(RedundantReport, node, source, axes, flops, factor)
TESSERA_JSON(PaddingReport, dim, size, padded)
TESSERA_JSON(TimeReport, seconds, compute, slowed, transfer, exposed, bubble)
TESSERA_JSON(PipelineReport, axis, stages, microbatches, ticks, busy)
TESSERA_JSON(BucketReport, kind, axes, buckets, most, seconds, started)
TESSERA_JSON(KernelReport, kernel, tensor, source, times, flops, bytes, seconds, roofline)
TESSERA_JSON(PlanAxes, axes, bytes, seconds, exposed)
TESSERA_JSON(PlanTransfer, kind, tensor, axes, bytes)
TESSERA_JSON(DimAlternative, dim, now, instead, penalty, memory, fits)
TESSERA_JSON(SimulatedAxes, axes, bytes, seconds, exposed)
TESSERA_JSON(SimulatedStep, kernel, name, source, axes, begin, seconds, exposed)

}  // namespace tessera

namespace tessera::cli {

/// Adds a field to each of the objects: value_of() of the item that it is made of.
template <class Items, class ValueOf>
void add_field(nlohmann::json& rows, const char* field, const Items& items,
               const ValueOf& value_of) {
  size_t at = 0;
  for (const auto& item : items) rows[at++][field] = value_of(item);
}
/// Removes fields from each of the objects.
inline void without(nlohmann::json& rows, std::initializer_list<const char*> fields) {
  for (nlohmann::json& row : rows) {
    for (const char* field : fields) row.erase(field);
  }
}

}  // namespace tessera::cli
