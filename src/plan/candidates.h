// What a search chooses from: candidates, and all that is known of one before it is priced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/pricer.h"
#include "plan/space.h"

namespace tessera {

/// A plan that may not be priced yet. The options are indices into those of the PlanModel.
struct Candidate {
  size_t assignment = 0;  ///< Candidates::assignment()
  Storage storage = {};
  size_t recompute_option = 0, microbatch_option = 0;
  std::string scoped = {};  ///< rules for segments of the model
};

/// The model of a search, its space, its estimates, and the assignments that were added so far.
class Candidates {
 public:
  /// Keeps references. Throws the usage errors of Space for rules that the model lacks.
  Candidates(const PlanModel& model, const Machine& machine, const PlanOptions& options);

  Pricer& pricer() { return pricer_; }
  const PlanModel& model() const { return pricer_.model(); }
  const Machine& machine() const { return pricer_.machine(); }
  const PlanOptions& options() const { return options_; }
  const Space& space() const { return space_; }
  /// The summary with the first recompute option; dims and sizes are those of all options.
  const StepSummary& summary() const { return summaries_[0]; }
  const Estimates& estimates(size_t recompute_option = 0) const {
    return estimates_[recompute_option];
  }
  size_t recompute_options() const { return summaries_.size(); }
  size_t microbatch_options() const { return model().microbatches.size(); }
  int64_t microbatches(size_t option) const { return model().microbatches.at(option); }

  size_t size() const { return assignments_.size(); }
  const Assignment& assignment(size_t i) const { return assignments_[i]; }
  const Assignment& assignment(const Candidate& c) const { return assignments_[c.assignment]; }
  /// Returns its number.
  size_t add(Assignment assignment);
  /// Reorders the axes of an assignment: those that communicate most come last, which is inside a
  /// node, where links are fastest. Names them, too.
  void order_axes(size_t assignment);

  /// None, and ZeRO 1, 2 and 3 over all axes along which parameters are copies, or over one of
  /// them.
  std::vector<Storage> storages(size_t assignment) const;
  /// True if two neighbouring axes split the same dims and are stored over alike: one axis of the
  /// size of both makes the same plan.
  bool is_merged(size_t assignment, const Storage& storage) const;
  /// True if an axis leaves so much of the parameters as copies that storing them in slices pays.
  bool leaves_copies(const Assignment& a, int axis) const;
  /// False if the option reshards parameters after forward that are not stored in slices.
  bool applies(size_t recompute_option, const Storage& storage) const;

  /// The rules of computing, without those of storage.
  std::string rules(const Candidate& c) const;
  /// All rules.
  std::string layout(const Candidate& c);
  /// The axes that it stores over: "data+pod".
  std::string stored_over(const Candidate& c) const;
  PlanBuild build(const Candidate& c) const;
  /// The graph of the model with two layers, or one where it has no more.
  const Graph& few_layers();

 private:
  Pricer pricer_;
  const PlanOptions& options_;
  std::vector<StepSummary> summaries_;  ///< by recompute option
  Space space_;
  std::vector<Estimates> estimates_;  ///< by recompute option
  std::vector<Assignment> assignments_;
};

}  // namespace tessera
