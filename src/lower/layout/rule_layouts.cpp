// The dims of a tensor claim axes in three rounds: rules whose glob matches the tensor's name, then
// global rules, then (for stored tensors, gradients and updates) purpose rules. A purpose rule adds
// minor axes that the tensor does not use yet, or replaces the axes of its dim (`x=a`).
#include "lower/layout/rule_layouts.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/fail.h"
#include "ir/body.h"
#include "ir/loop.h"
#include "program/sum_order.h"

namespace tessera {

RuleLayouts::RuleLayouts(const Graph& graph, const Mesh& mesh, const Layout& layout,
                         int64_t strict_chunks)
    : mesh_(mesh), strict_chunks_(strict_chunks) {
  resolve(graph, layout);
  check_intervals(graph);
  tie_sizes(graph);
  for (const Loop& loop : loops_of(graph)) {
    const std::optional<Dim>& batch = loop.divides;
    if (batch && loop.contiguous)
      batches_[{batch->name, batch->size / loop.over.size}] = batch->size;
  }
}

namespace {

/// True if the op has a form with equal work where `dim` is split, alone or with another dim.
bool balances_work(const OpCall& call, const std::string& dim, int64_t slices) {
  const auto has_form = [&](const std::string& own, const std::string& like) {
    return can_be_sharded(call, own, like, slices);
  };
  const Shape& first = call.in[0].shape;
  if (first.has(dim)) return has_form(dim, dim);
  const auto has_dim = [&](const ValueType& in) { return in.shape.has(dim); };
  return std::any_of(call.in.begin(), call.in.end(), has_dim) &&
         std::any_of(first.begin(), first.end(),
                     [&](const Dim& own) { return has_form(own.name, dim); });
}

/// True if the dim of a rule is a part of the name of a tensor: "gpt" of "gpt.block0.mlp.up.w".
bool is_part_of_name(const Graph& graph, const LayoutRule& rule) {
  const auto has_part = [&](const Value& v) {
    return ("." + v.name + ".").find("." + rule.dim + ".") != std::string::npos;
  };
  return rule.scope.empty() && std::any_of(graph.values().begin(), graph.values().end(), has_part);
}

/// True if the dim counts the layers of stored tensors.
bool counts_layers(const Graph& graph, const std::string& dim) {
  return std::any_of(graph.stored().begin(), graph.stored().end(), [&](const Stored& s) {
    const Shape& shape = graph.value(s.value).shape;
    return std::any_of(shape.begin(), shape.begin() + s.layers,
                       [&](const Dim& d) { return d.name == dim; });
  });
}

}  // namespace

void RuleLayouts::resolve(const Graph& graph, const Layout& layout) {
  std::set<std::string> known;
  for (const Value& v : graph.values()) {
    for (const Dim& d : v.shape) known.insert(d.name);
  }
  std::vector<std::string> names(known.begin(), known.end());
  std::erase_if(names, [](const std::string& name) { return name.starts_with('_'); });  // of loops
  for (const LayoutRule& source : layout.rules()) {
    if (source.automatic) {
      fail(ErrorKind::unsupported,
           "layout rule '{}': a Session is given axes; let tessera::plan() choose them, or on the "
           "command line `tessera plan` or --layout auto",
           source.text);
    }
    Rule rule{source, {}};
    for (const std::string& name : source.axes) {
      const int axis = mesh_.find(name);
      TESSERA_REQUIRE(axis >= 0, "layout rule '{}': mesh '{}' has no axis '{}'{}", source.text,
                      mesh_.to_string(), name, suggestion(name, mesh_.names()));
      TESSERA_REQUIRE(std::find(rule.axes.begin(), rule.axes.end(), axis) == rule.axes.end(),
                      "layout rule '{}' names axis '{}' twice", source.text, name);
      if (mesh_.axes()[axis].size > 1) rule.axes.push_back(axis);
    }
    bool matches = source.scope.empty() && known.count(source.dim);
    for (const Value& v : graph.values()) {
      if (matches) break;
      matches = v.shape.has(source.dim) && glob_match(source.scope, v.name);
    }
    TESSERA_REQUIRE(
        matches || source.optional,
        "layout rule '{}': no tensor{} has a dim '{}' (write '{}?' if it may be absent){}{}",
        source.text, source.scope.empty() ? "" : " named like '" + source.scope + "'", source.dim,
        source.dim, known.count(source.dim) ? "" : suggestion(source.dim, names),
        is_part_of_name(graph, source)
            ? "; a rule names dims, and dots separate them: write @/NAME/ dim:axis for the "
              "dims of tensors whose names are like NAME"
        : source.dim == "stage" || source.dim == "stages"
            ? "; stages are the ranks along the axis of the layers: layers:AXIS"
            : "");
    for (const Rule& other : rules_) {
      TESSERA_REQUIRE(other.source.dim != source.dim || other.source.scope != source.scope ||
                          other.source.purpose != source.purpose ||
                          other.source.axes == source.axes,
                      "layout rules '{}' and '{}' disagree about dim '{}'; join axes with '+'",
                      other.source.text, source.text, source.dim);
    }
    rules_.push_back(std::move(rule));
  }
  add_rules_of_sources(graph);
}

/// Rows that are dispatched have two dims on the axes of the groups: their sources and the owners
/// of their groups. Of the latter, called like the groups, the rules speak.
void RuleLayouts::add_rules_of_sources(const Graph& graph) {
  std::set<std::string> groups;
  for (const Node& node : graph.nodes()) {
    if (node.op->routing) groups.insert(node.op->routing(node.attrs).groups);
  }
  for (size_t i = 0, n = rules_.size(); i < n; ++i) {
    if (!groups.count(rules_[i].source.dim) || rules_[i].source.purpose != Purpose::none) continue;
    Rule sources = rules_[i];
    sources.source.dim = sources_of(sources.source.dim);
    sources.source.intervals = 1;
    rules_.push_back(std::move(sources));
  }
}

void RuleLayouts::require_growing_work(const Graph& graph, const Rule& rule) const {
  const int64_t slices = slices_of(rule.axes);
  const auto needs_it = [&](const Node& node) {
    if (!node.op->body || !node.op->sharded_body) return false;
    const CallTypes types = call_types(graph, node);
    return balances_work({*node.op, types.in, types.out, node.attrs}, rule.source.dim, slices);
  };
  if (std::any_of(graph.nodes().begin(), graph.nodes().end(), needs_it)) return;
  int64_t size = 0;
  for (const Value& v : graph.values()) {
    if (v.shape.has(rule.source.dim)) size = std::max(size, v.shape.dim(rule.source.dim).size);
  }
  TESSERA_REQUIRE(
      size >= 2 * slices,
      "layout rule '{0}': '*2' is for a dim along which work grows, as that of causal "
      "attention without a window does along its queries, and '{1}' of {2} is too short for "
      "two intervals on each of {3} ranks; make it {4} or longer, or write the rule without "
      "'*2'",
      rule.source.text, rule.source.dim, size, slices, 2 * slices);
  fail(ErrorKind::usage,
       "layout rule '{0}': no op has more work towards the end of '{1}', so '*2' has nothing to "
       "even out; only causal attention without a window has, along its queries. Write the rule "
       "without '*2', or '{1}?' if it may have no effect",
       rule.source.text, rule.source.dim);
}

void RuleLayouts::check_intervals(const Graph& graph) const {
  for (const Rule& rule : rules_) {
    const int64_t intervals = rule.source.intervals;
    if (intervals == 1 || rule.axes.empty()) continue;
    if (counts_layers(graph, rule.source.dim)) {
      TESSERA_REQUIRE(
          rule.axes.size() == 1,
          "layout rule '{}': layers over several axes have no stages, and so no chunks; give "
          "'{}' one axis, or write the rule without '*{}'",
          rule.source.text, rule.source.dim, intervals);
      continue;
    }
    TESSERA_REQUIRE(
        intervals == 2 || rule.source.optional,
        "layout rule '{}': '*2' gives each rank two intervals of '{}' with the same work; only "
        "repeated layers have other numbers of them, the chunks of a stage",
        rule.source.text, rule.source.dim);
    if (!rule.source.optional) require_growing_work(graph, rule);
  }
}

int64_t RuleLayouts::chunks(const std::string& layers, int axis) const {
  for (const Rule& rule : rules_) {
    if (rule.source.dim == layers && rule.axes == std::vector<int>{axis} &&
        rule.source.purpose == Purpose::none && rule.source.scope.empty())
      return rule.source.intervals;
  }
  return 1;
}

void RuleLayouts::tie_sizes(const Graph& graph) {
  std::map<DimKey, DimKey> parent;
  auto find = [&](DimKey key) {
    parent.emplace(key, key);
    while (parent[key] != key) key = parent[key];
    return key;
  };
  for (const Value& v : graph.values()) {
    for (const Dim& d : v.shape) find({d.name, d.size});
  }
  for (const Node& node : graph.nodes()) {
    if (!node.op->factors) continue;  // one factor per name: only equal names are tied
    const IndexSpace space = index_space(graph, node);
    std::map<int, DimKey> of_factor;
    auto tie = [&](const std::vector<int>& values,
                   const std::vector<std::vector<std::vector<int>>>& operands) {
      for (size_t i = 0; i < operands.size(); ++i) {
        const Shape& shape = graph.value(values[i]).shape;
        for (size_t d = 0; d < operands[i].size(); ++d) {
          if (operands[i][d].size() != 1) continue;
          const DimKey key =
              find({shape[static_cast<int>(d)].name, shape[static_cast<int>(d)].size});
          auto [it, is_new] = of_factor.emplace(operands[i][d][0], key);
          if (!is_new) parent[key] = find(it->second);
        }
      }
    };
    tie(node.in, space.in);
    tie(node.out, space.out);
  }
  std::map<DimKey, std::set<int>> axes;
  for (const auto& [key, up] : parent) {
    for (const Rule& rule : rules_) {
      if (rule.source.dim == key.first) axes[find(key)].insert(rule.axes.begin(), rule.axes.end());
    }
  }
  for (const auto& [key, up] : std::map(parent)) multiple_[key] = slices_of(axes[find(key)]);
}

int64_t RuleLayouts::padded(const Dim& dim) const {
  auto it = multiple_.find({dim.name, dim.size});
  int64_t multiple = 1;
  if (it != multiple_.end()) {
    multiple = it->second;
  } else {
    std::set<int> axes;
    for (const Rule& rule : rules_) {
      const LayoutRule& own = rule.source;
      if (own.dim == dim.name && own.purpose == Purpose::none && own.scope.empty())
        axes.insert(rule.axes.begin(), rule.axes.end());
    }
    multiple = slices_of(axes);
  }
  if (multiple > 1 && strict_chunks_ > 0) multiple *= chunk(dim);
  return (dim.size + multiple - 1) / multiple * multiple;
}

bool RuleLayouts::is_subtree(const Dim& dim) const {
  const auto batch = batches_.find({dim.name, dim.size});
  return batch != batches_.end() && tessera::is_subtree(dim.size, batch->second, strict_chunks_);
}

int64_t RuleLayouts::chunk(const Dim& dim) const {
  return chunk_size(is_subtree(dim) ? batches_.at({dim.name, dim.size}) : dim.size, strict_chunks_);
}

int64_t RuleLayouts::local(const Dim& dim, const std::vector<int>& axes) const {
  int64_t size = padded(dim);
  for (int axis : axes) {
    TESSERA_CHECK(size % mesh_.axes()[axis].size == 0,
                  "dim '{}' of padded size {} is split over axis '{}' of size {}", dim.name,
                  padded(dim), mesh_.axes()[axis].name, mesh_.axes()[axis].size);
    size /= mesh_.axes()[axis].size;
  }
  return size;
}

bool RuleLayouts::balances(const std::string& dim, const std::vector<int>& axes) const {
  return std::any_of(rules_.begin(), rules_.end(), [&](const Rule& rule) {
    return rule.source.intervals == 2 && rule.source.dim == dim && rule.axes == axes;
  });
}

bool RuleLayouts::depends_on_names() const {
  return std::any_of(rules_.begin(), rules_.end(), [](const Rule& rule) {
    return rule.source.purpose == Purpose::none && !rule.source.scope.empty();
  });
}

int64_t RuleLayouts::local_elements(const Shape& shape, const TensorLayout& layout) const {
  int64_t n = 1;
  for (int d = 0; d < shape.rank(); ++d) n *= local(shape[d], layout.dims[d]);
  return n;
}

void RuleLayouts::apply_purpose(Purpose purpose, const Shape& shape, const std::string& name,
                                const TensorLayout& compute, TensorLayout& layout) const {
  for (const Rule& rule : rules_) {
    if (rule.source.purpose != purpose) continue;
    if (!rule.source.scope.empty() && !glob_match(rule.source.scope, name)) continue;
    const int d = shape.find(rule.source.dim);
    if (d < 0) continue;
    if (rule.source.replaces) layout.dims[d].clear();
    for (int axis : rule.axes) {
      if (!layout.uses(axis) && (rule.source.replaces || !compute.uses(axis)))
        layout.dims[d].push_back(axis);
    }
  }
}

TensorLayout RuleLayouts::of(const Shape& shape, const std::string& name, Purpose purpose,
                             const std::vector<std::string>& prefer) const {
  TensorLayout layout;
  layout.dims.resize(shape.rank());
  std::vector<bool> decided(shape.rank(), false);
  std::vector<const Rule*> claim(mesh_.rank(), nullptr);
  auto apply = [&](const Rule& rule, bool is_own) {
    const int d = shape.find(rule.source.dim);
    if (d < 0 || decided[d]) return;
    decided[d] = true;
    for (int axis : rule.axes) {
      if (claim[axis] == nullptr) {
        claim[axis] = &rule;
        layout.dims[d].push_back(axis);
        continue;
      }
      const Rule& other = *claim[axis];
      if (!is_own && !other.source.scope.empty()) continue;
      const auto first = std::find(prefer.begin(), prefer.end(), other.source.dim),
                 second = std::find(prefer.begin(), prefer.end(), rule.source.dim);
      if (first == second) {
        throw Contradiction(fmt::format(
            "tensor '{}' {}: dims '{}' and '{}' both claim mesh axis '{}' (rules '{}' and '{}'); "
            "give one of them another axis, or say .prefer(\"{}\") in the model",
            name, shape.to_string(), other.source.dim, rule.source.dim, mesh_.axes()[axis].name,
            other.source.text, rule.source.text, rule.source.dim));
      }
      if (second < first) {
        auto& loser = layout.dims[shape.find(other.source.dim)];
        loser.erase(std::find(loser.begin(), loser.end(), axis));
        layout.dims[d].push_back(axis);
        claim[axis] = &rule;
      }
    }
  };
  for (const Rule& rule : rules_) {
    const bool own = rule.source.purpose == Purpose::none && !rule.source.scope.empty();
    if (own && glob_match(rule.source.scope, name)) apply(rule, true);
  }
  for (const Rule& rule : rules_) {
    if (rule.source.scope.empty() && rule.source.purpose == Purpose::none) apply(rule, false);
  }
  if (purpose == Purpose::none) return layout;
  const TensorLayout compute = layout;
  apply_purpose(Purpose::params, shape, name, compute, layout);
  if (purpose != Purpose::params) apply_purpose(Purpose::grads, shape, name, compute, layout);
  if (purpose == Purpose::state) apply_purpose(Purpose::state, shape, name, compute, layout);
  return layout;
}

TensorLayout RuleLayouts::storage(const Graph& graph, const Stored& stored) const {
  const Value& v = graph.value(stored.value);
  return of(v.shape, v.name, stored.purpose, v.prefer);
}

std::string RuleLayouts::rule_text(const std::string& dim, int axis,
                                   const std::string& name) const {
  for (const Rule& rule : rules_) {
    const bool splits = rule.source.dim == dim &&
                        std::find(rule.axes.begin(), rule.axes.end(), axis) != rule.axes.end();
    if (splits && (rule.source.scope.empty() || glob_match(rule.source.scope, name)))
      return rule.source.text;
  }
  const int i = rule_order(dim, axis);
  return i < static_cast<int>(rules_.size()) ? rules_[i].source.text : "";
}

int RuleLayouts::rule_order(const std::string& dim, int axis) const {
  for (size_t i = 0; i < rules_.size(); ++i) {
    if (rules_[i].source.dim == dim &&
        std::find(rules_[i].axes.begin(), rules_[i].axes.end(), axis) != rules_[i].axes.end()) {
      return static_cast<int>(i);
    }
  }
  return static_cast<int>(rules_.size());
}

}  // namespace tessera
