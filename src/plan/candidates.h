// What a search chooses from: candidates, and what is known of each before it is priced.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plan/pricer.h"
#include "plan/space.h"

namespace tessera {

/// A plan that may not be priced yet. Options are indices into those of the PlanModel.
struct Candidate {
  size_t assignment = 0;  ///< Candidates::assignment()
  Storage storage = {};
  size_t recompute_option = 0, microbatch_option = 0;
  std::string scoped = {};        ///< scoped rules, as a layout string
  std::string schedule = "1f1b";  ///< of stages
  int64_t chunks = 1;             ///< of a stage's layers
  bool reduce_each = false;       ///< PlanBuild::reduce_each_microbatch
};

/// The model of a search, its space, its estimates, and the assignments added so far.
class Candidates {
 public:
  /// Keeps references. Throws usage errors for rules that do not fit the model.
  Candidates(const PlanModel& model, const Machine& machine, const PlanOptions& options);

  Pricer& pricer() { return pricer_; }
  const PlanModel& model() const { return pricer_.model(); }
  const Machine& machine() const { return pricer_.machine(); }
  const PlanOptions& options() const { return options_; }
  const Space& space() const { return space_; }
  /// The summary with the first recompute option; dims and sizes are the same with all options.
  const StepSummary& summary() const { return summaries_[0]; }
  const Estimates& estimates(size_t recompute_option = 0) const {
    return estimates_[recompute_option];
  }
  size_t recompute_options() const { return summaries_.size(); }
  size_t microbatch_options() const { return model().microbatches.size(); }
  int64_t microbatches(size_t option) const { return model().microbatches.at(option); }
  Microbatching microbatching(const Candidate& c) const {
    return {microbatches(c.microbatch_option), c.schedule, c.chunks,
            model().reduce_each_microbatch || c.reduce_each};
  }

  size_t size() const { return assignments_.size(); }
  const Assignment& assignment(size_t i) const { return assignments_[i]; }
  const Assignment& assignment(const Candidate& c) const { return assignments_[c.assignment]; }
  /// True if the candidate is a pipeline: its layers are in more than one stage.
  bool has_stages(size_t assignment) const { return stages(assignment) > 1; }
  int64_t stages(size_t assignment) const { return estimates_[0].stages(assignments_[assignment]); }
  /// The numbers of chunks that a stage may have, in ascending order. May be none.
  std::vector<int64_t> chunk_options(size_t assignment, const std::string& schedule) const;
  /// Adds an assignment and returns its index.
  size_t add(Assignment assignment);
  /// Reorders and names the axes of an assignment: those with most communication come last, inside
  /// a node, where links are fastest.
  void order_axes(size_t assignment);

  /// The ways to store parameters and state: replicated, or ZeRO 1, 2 or 3 over all axes along
  /// which parameters are replicated, or over one of those.
  std::vector<Storage> storages(size_t assignment) const;
  /// True if two neighbouring axes split the same dims and have the same storage: one axis with the
  /// product of their sizes gives the same plan.
  bool is_merged(size_t assignment, const Storage& storage) const;
  /// True if an axis leaves enough of the parameters replicated for ZeRO over it to pay.
  bool leaves_copies(const Assignment& a, int axis) const;
  /// False if the candidate's recompute option reshards parameters after forward and its storage is
  /// not ZeRO 3, or its layers are a loop of stages.
  bool applies(const Candidate& c) const;

  /// The layout rules without those of storage.
  std::string rules(const Candidate& c) const;
  /// All layout rules.
  std::string layout(const Candidate& c);
  /// The axes of the storage: "data+pod".
  std::string stored_over(const Candidate& c) const;
  PlanBuild build(const Candidate& c) const;
  /// PricedPlan::settings.
  std::string settings(const Candidate& c) const;
  /// The graph of the model with at most two layers.
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
