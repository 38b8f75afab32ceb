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
#include "lower/partition/program_variant.h"

namespace tessera {

class CompositeExpander {
 public:
  /// Keeps references. `kernels`: composites that the device computes as one op. `walk`: visits the
  /// nodes of a frame.
  CompositeExpander(const RuleLayouts& rule_layouts, const std::set<const Op*>& kernels,
                    const PartitionOptions& options, FlowEmitter& emit, LayoutChooser& layouts,
                    std::function<void(Frame&)> walk)
      : rule_layouts_(rule_layouts),
        kernels_(kernels),
        variant_(options.variant),
        strict_chunks_(options.strict_chunks),
        emit_(emit),
        layouts_(layouts),
        walk_(std::move(walk)) {}

  /// Replaces the node by its body, or by its form for split dims (Op::sharded_body, Op::routing),
  /// and returns true. Returns false if the node is to be computed as one op.
  bool expand(Frame& frame, const Node& node, const OpCall& call, const std::vector<int>& in);

 private:
  bool is_strict() const { return strict_chunks_ > 0; }
  bool stays_whole(const Frame& frame, const Node& node, const OpCall& call,
                   const std::vector<int>& in);
  std::optional<Body> sharded(const OpCall& call, const std::vector<int>& in);
  std::optional<Body> balanced(const OpCall& call, const std::vector<int>& in);
  void add_body(Frame& frame, const Node& node, const Body& body, const std::vector<int>& in,
                std::vector<std::string> prefer);

  const RuleLayouts& rule_layouts_;
  const std::set<const Op*>& kernels_;
  const ProgramVariant variant_;
  const int64_t strict_chunks_;  ///< 0: not strict. Forms for split dims add in another order
  FlowEmitter& emit_;
  LayoutChooser& layouts_;
  std::function<void(Frame&)> walk_;
};

}  // namespace tessera
