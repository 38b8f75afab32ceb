#include "compile/program_variants.h"

#include <algorithm>
#include <cmath>

#include "base/fail.h"
#include "tessera/op.h"

namespace tessera {

namespace {

constexpr double kLeastGain = 0.99;  ///< predictions are not as good as that

bool may_dispatch(const Graph& graph, const Mesh& mesh) {
  return mesh.size() > 1 && std::any_of(graph.nodes().begin(), graph.nodes().end(),
                                        [](const Node& node) { return node.op->routing; });
}

void choose_dispatch_chunks(const Graph& graph, LowerOptions& options) {
  int& chosen = options.variant.dispatch_chunks;
  if (chosen > 0) return;
  chosen = 1;
  if (!options.seconds || !may_dispatch(graph, options.mesh)) return;
  LowerOptions halves = options, whole = options;
  halves.variant.dispatch_chunks = 2;
  halves.after_pass = whole.after_pass = {};
  if (options.seconds(lower(graph, halves)) < kLeastGain * options.seconds(lower(graph, whole)))
    chosen = 2;
}

}  // namespace

Program lower_chosen(const Graph& graph, LowerOptions options) {
  choose_dispatch_chunks(graph, options);
  return lower(graph, options);
}

bool has_capacities(const Function& function) {
  return std::any_of(function.steps.begin(), function.steps.end(), [](const Step& step) {
    return (step.find<IndexedSpec>() && step.as<IndexedSpec>().capacity >= 0) ||
           std::any_of(step.body.begin(), step.body.end(), has_capacities);
  });
}

ProgramVariants::ProgramVariants(const Graph& graph, LowerOptions options) {
  choose_dispatch_chunks(graph, options);
  programs_.push_back(lower(graph, options));
  const auto has_larger = [](const Program& program) {
    return std::any_of(program.functions.begin(), program.functions.end(), has_capacities);
  };
  while (has_larger(programs_.back())) {
    options.variant.capacity *= kCapacityGrowth;
    programs_.push_back(lower(graph, options));
  }
}

void ProgramVariants::next() {
  TESSERA_CHECK(has_next(), "a count exceeds the largest capacity");
  ++current_;
}

void ProgramVariants::back() {
  TESSERA_CHECK(current_ > 0, "no variant is smaller than the first");
  --current_;
}

double ProgramVariants::growth() const {
  return std::pow(kCapacityGrowth, static_cast<double>(current_));
}

uint64_t ProgramVariants::hash() const {
  uint64_t all = 0;
  for (const Program& program : programs_)
    all = all * 0x9e3779b97f4a7c15ull ^ tessera::hash(program);
  return all;
}

}  // namespace tessera
