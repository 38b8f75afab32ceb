// Composites, that is ops with a body: computed by one kernel, or expanded.
#pragma once

#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ir/body.h"
#include "lower/partition/flow_emitter.h"
#include "lower/partition/frame.h"
#include "lower/partition/layout_chooser.h"

namespace tessera {

class CompositeExpander {
 public:
  /// Keeps references. `kernels`: composites that the device computes as one op. `row_bounds`: see
  /// LowerOptions; it multiplies the attribute "row_bound" of the blockwise form of an op that has
  /// one. Such a form also gets `row_parts` as an attribute, and may get "row_dims" and
  /// "row_slices" (note_rows). `walk`: visits the nodes of a frame.
  CompositeExpander(const RuleLayouts& rule_layouts, const std::set<const Op*>& kernels,
                    double row_bounds, int row_parts, FlowEmitter& emit, LayoutChooser& layouts,
                    std::function<void(Frame&)> walk)
      : rule_layouts_(rule_layouts),
        kernels_(kernels),
        row_bounds_(row_bounds),
        row_parts_(row_parts),
        emit_(emit),
        layouts_(layouts),
        walk_(std::move(walk)) {}

  /// Replaces the node by its body, or by its blockwise form (Op::by_slices), and returns true.
  /// Returns false if the node is to be computed as one op.
  bool expand(Frame& frame, const Node& node, const OpCall& call, const std::vector<int>& in);

 private:
  bool stays_whole(const Frame& frame, const Node& node, const OpCall& call,
                   const std::vector<int>& in);
  std::optional<Body> by_slices(const OpCall& call, const std::vector<int>& in);
  void note_rows(const OpCall& call, const std::vector<std::vector<int>>& first,
                 const std::vector<int>& axes, Attrs& attrs) const;
  std::optional<Body> balanced(const OpCall& call, const std::vector<int>& in);
  int64_t slices_of(const std::vector<int>& axes) const;
  bool is_split_once(const std::string& dim, int64_t slices) const;
  void add_body(Frame& frame, const Node& node, const Body& body, const std::vector<int>& in,
                std::vector<std::string> prefer);

  const RuleLayouts& rule_layouts_;
  const std::set<const Op*>& kernels_;
  double row_bounds_;
  int row_parts_;
  FlowEmitter& emit_;
  LayoutChooser& layouts_;
  std::function<void(Frame&)> walk_;
};

}  // namespace tessera
