// A view of a result has sizes, strides and an offset, which say the columns that it consists of.
// Views are followed until one has some of the columns, or something computes with it.
#include "pytorch/parts.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>

#include "base/fail.h"
#include "pytorch/reading.h"

namespace tessera::pytorch {

namespace {

/// Axes that elements of a larger tensor lie along.
struct Span {
  std::vector<int64_t> sizes, strides;
  int64_t offset = 0;
};

/// What a view has of a result [rows..., columns].
struct View {
  std::string value;
  std::vector<size_t> order;  ///< its axes by their strides, those of rows first
  Span columns;               ///< the others, those as one that can be
};

bool is_dense(const Span& x) {
  int64_t inner = 1;
  for (size_t d = x.sizes.size(); d-- > 0; inner *= x.sizes[d])
    if (x.sizes[d] > 1 && x.strides[d] != inner) return false;
  return x.offset == 0;
}

Span span_of(const TensorMeta& meta) { return {meta.sizes, meta.strides, meta.offset}; }

bool is_any_of(const std::string& target, std::initializer_list<const char*> ops) {
  return std::any_of(ops.begin(), ops.end(), [&](const char* op) {
    return target.starts_with(std::string("aten.") + op + ".");
  });
}

/// Whether results lie where the operand does. A reshape of what lies densely copies nothing.
bool only_moves(const Node& node, const TensorMeta& operand) {
  return (is_any_of(node.target, {"reshape", "flatten"}) && is_dense(span_of(operand))) ||
         is_any_of(node.target, {"view", "_unsafe_view", "select", "slice", "unsqueeze", "squeeze",
                                 "transpose", "permute", "alias", "narrow", "unflatten", "movedim",
                                 "chunk", "split", "split_with_sizes", "unbind", "t", "swapaxes"});
}

/// A bias of keys adds the same to all logits of a query, which the softmax cancels: its gradient
/// is 0, and only rounding would train it. Finds such attention while keys are still views of whole
/// products, and stops the gradient when they are products of their own.
class KeyBiases : private Reading {
 public:
  explicit KeyBiases(ExportedProgram& program) : Reading(program) {}

  void find() {
    index();
    for (const Node& node : graph_.nodes) {
      if (node.target != "aten.scaled_dot_product_attention.default" || node.find("soft_cap"))
        continue;
      const std::string key = tensor_of(node, "key");
      const Node* product = product_of(key, false);
      if (!product) continue;
      const TensorMeta& meta = graph_.tensors.at(key);
      const TensorMeta& whole = graph_.tensors.at(product->outputs[0]);
      const size_t rank = meta.sizes.size();
      // Positions are rows of the product, not columns.
      if (rank > 1 && is_dense(span_of(whole)) && meta.strides[rank - 2] >= whole.sizes.back())
        keys_.insert(key);
    }
  }

  void stop() {
    index();
    std::map<std::string, Node> stops;  // in front of the node with this result
    for (const std::string& key : keys_) {
      const Node* product = product_of(key, true);
      if (!product) continue;
      const std::string bias =
          tensor_of(*product, product->target == "aten.linear.default" ? "bias" : "self");
      if (bias.empty() || graph_.tensors.at(bias).sizes.size() != 1) continue;
      Node stop = *product;
      stop.target = "aten.detach.default";
      stop.args = {{"self", TensorName{bias}}};
      stop.outputs = {product->outputs[0] + "__bias"};
      graph_.tensors[stop.outputs[0]] = graph_.tensors.at(bias);
      stops[product->outputs[0]] = stop;
    }
    std::vector<Node> nodes;
    for (Node& node : graph_.nodes) {
      const auto stop = node.outputs.empty() ? stops.end() : stops.find(node.outputs[0]);
      if (stop != stops.end()) {
        const std::string bias = tensor_of(stop->second, "self");
        for (auto& [name, arg] : node.args)
          if (const auto* t = std::get_if<TensorName>(&arg); t && t->name == bias)
            arg = TensorName{stop->second.outputs[0]};
        nodes.push_back(stop->second);
      }
      nodes.push_back(node);
    }
    graph_.nodes = std::move(nodes);
  }

 private:
  /// The product that a value is a view of, one that nothing else reads if `alone`.
  const Node* product_of(std::string value, bool alone) const {
    while (true) {
      const auto made = maker_.find(value);
      if (made == maker_.end() || (alone && readers_.at(value) != 1)) return nullptr;
      const Node& node = graph_.nodes[made->second];
      if (node.target == "aten.linear.default" || node.target == "aten.addmm.default") return &node;
      const std::string from = tensor_of(node, "self");
      if (from.empty() || !only_moves(node, graph_.tensors.at(from)) ||
          (alone && node.outputs.size() != 1))
        return nullptr;
      value = from;
    }
  }

  std::set<std::string> keys_;
};

class PartFinder {
 public:
  explicit PartFinder(ExportedProgram& program) : program_(program), graph_(program.graph) {}

  void run() {
    for (size_t i = 0; i < graph_.nodes.size(); ++i)
      for (const std::string& operand : operands_of(graph_.nodes[i]))
        if (std::vector<size_t>& all = readers_[operand]; all.empty() || all.back() != i)
          all.push_back(i);
    kept_.insert(program_.outputs.begin(), program_.outputs.end());
    for (const auto& [buffer, value] : program_.mutations) kept_.insert(value);
    kept_.insert(program_.loss);
    for (const InputSpec& input : program_.inputs) kept_.insert(input.tied_to);
    std::vector<Node> nodes;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (gone_.count(i) != 0) continue;
      added_.clear();
      if (!divide(graph_.nodes[i]) && !divide_experts(graph_.nodes[i]))
        nodes.push_back(graph_.nodes[i]);
      nodes.insert(nodes.end(), added_.begin(), added_.end());
    }
    graph_.nodes = std::move(nodes);
    std::vector<InputSpec> inputs;
    for (const InputSpec& input : program_.inputs) {
      const auto made = made_.find(input.name);
      if (made == made_.end()) {
        inputs.push_back(input);
      } else {
        inputs.insert(inputs.end(), made->second.begin(), made->second.end());
      }
    }
    program_.inputs = std::move(inputs);
  }

 private:
  InputSpec* parameter(const std::string& value) {
    for (InputSpec& input : program_.inputs)
      if (input.value == value && input.kind == InputSpec::Kind::parameter &&
          input.tied_to.empty() && kept_.count(value) == 0 && readers_[value].size() == 1 &&
          is_dense(span_of(graph_.tensors.at(value))) && program_.stored.count(input.name) != 0)
        return &input;
    return nullptr;
  }

  /// The columns of [rows, columns] that a view has, in `order`; nothing if it lacks rows.
  static std::optional<View> columns_of(const std::string& value, const Span& x, int64_t rows,
                                        int64_t columns) {
    View view;
    view.value = value, view.columns.offset = x.offset;
    view.order.resize(x.sizes.size());
    std::iota(view.order.begin(), view.order.end(), size_t{0});
    std::stable_sort(view.order.begin(), view.order.end(), [&](size_t a, size_t b) {
      return (x.sizes[a] == 1 ? 0 : x.strides[a]) > (x.sizes[b] == 1 ? 0 : x.strides[b]);
    });
    int64_t left = rows, last = x.offset;
    for (const size_t a : view.order) {
      const int64_t n = x.sizes[a], stride = x.strides[a];
      if (n == 1) continue;
      if (left > 1) {
        if (left % n != 0 || stride != left / n * columns) return {};
        left /= n;
        continue;
      }
      last += (n - 1) * stride;
      Span& c = view.columns;
      if (stride < 1) return {};
      if (!c.sizes.empty() && c.strides.back() == n * stride) {
        c.sizes.back() *= n, c.strides.back() = stride;
      } else {
        c.sizes.push_back(n), c.strides.push_back(stride);
      }
    }
    if (left > 1 || last >= columns) return {};
    return view;
  }

  static int64_t count_of(const Span& x) {
    return std::accumulate(x.sizes.begin(), x.sizes.end(), int64_t{1}, std::multiplies<>());
  }

  /// The views in which `value` is read, `place` being where its elements lie in the result. False
  /// if something reads all columns.
  bool follow(const std::string& value, const Span& place, int64_t rows, int64_t columns,
              std::vector<View>& views) {
    const std::optional<View> view = columns_of(value, place, rows, columns);
    if (view && count_of(view->columns) < columns) {
      views.push_back(*view);
      return true;
    }
    if (!view || kept_.count(value) != 0) return false;
    for (const size_t reader : readers_[value]) {
      const Node& node = graph_.nodes[reader];
      const bool copies = is_any_of(node.target, {"contiguous", "clone"});
      if (!only_moves(node, graph_.tensors.at(value)) && !copies) return false;
      for (const std::string& output : node.outputs) {
        Span next = span_of(graph_.tensors.at(output));
        if (copies) {
          copied_[output] = place, next = place;
        } else if (const auto from = copied_.find(value); from != copied_.end()) {
          const std::optional<Span> before = in_copied(next, from->second, value);
          if (!before) return false;
          next = *before;
        }
        if (!follow(output, next, rows, columns, views)) return false;
      }
      passed_.insert(reader);
    }
    return true;
  }

  /// Where a view of a copy lies in what was copied: its axes are axes of the copy.
  std::optional<Span> in_copied(const Span& view, const Span& source,
                                const std::string& copy) const {
    const Span whole = span_of(graph_.tensors.at(copy));
    Span result{view.sizes, view.strides, source.offset};
    int64_t offset = view.offset;
    for (size_t d = 0; d < whole.sizes.size(); ++d) {
      if (whole.sizes[d] == 1) continue;
      result.offset += offset / whole.strides[d] * source.strides[d];
      offset %= whole.strides[d];
    }
    for (size_t a = 0; a < view.sizes.size(); ++a) {
      bool found = view.sizes[a] == 1;
      for (size_t d = 0; d < whole.sizes.size() && !found; ++d) {
        found = whole.sizes[d] == view.sizes[a] && whole.strides[d] == view.strides[a];
        if (found) result.strides[a] = source.strides[d];
      }
      if (!found) return {};
    }
    return result;
  }

  /// The product in parts.
  bool divide(const Node& node) {
    const bool is_linear = node.target == "aten.linear.default";
    if ((!is_linear && node.target != "aten.addmm.default") || node.outputs.size() != 1)
      return false;
    for (const char* factor : {"alpha", "beta"})
      if (node.find(factor)) return false;
    InputSpec* const w = parameter(tensor_of(node, is_linear ? "weight" : "mat2"));
    const std::string added = tensor_of(node, is_linear ? "bias" : "self");
    InputSpec* const b = added.empty() ? nullptr : parameter(added);
    const std::string& y = node.outputs[0];
    const Span all = span_of(graph_.tensors.at(y));
    if (!w || (!b && !added.empty()) || all.sizes.empty() || !is_dense(all)) return false;
    if (b && graph_.tensors.at(added).sizes.size() != 1) return false;
    const int64_t columns = all.sizes.back();
    if (columns < 2) return false;
    const int64_t rows = count_of(all) / columns;
    std::vector<View> views;
    passed_.clear(), copied_.clear();
    if (!follow(y, all, rows, columns, views)) return false;
    // Each column is in one part.
    std::vector<Span> parts;
    std::vector<int> taken(static_cast<size_t>(columns), 0);
    for (const View& view : views) {
      const auto same = [&](const Span& s) {
        return s.offset == view.columns.offset && s.sizes == view.columns.sizes &&
               s.strides == view.columns.strides;
      };
      if (std::any_of(parts.begin(), parts.end(), same)) continue;
      parts.push_back(view.columns);
      for (int64_t i = 0; i < count_of(view.columns); ++i) {
        int64_t at = view.columns.offset, rest = i;
        for (size_t d = view.columns.sizes.size(); d-- > 0; rest /= view.columns.sizes[d])
          at += rest % view.columns.sizes[d] * view.columns.strides[d];
        if (++taken[static_cast<size_t>(at)] > 1) return false;
      }
    }
    if (std::find(taken.begin(), taken.end(), 0) != taken.end()) return false;
    std::sort(parts.begin(), parts.end(),
              [](const Span& x, const Span& z) { return x.offset < z.offset; });
    for (size_t p = 0; p < parts.size(); ++p) {
      const std::string result = fmt::format("{}__part{}", y, p);
      Node product = node;
      product.outputs = {result};
      TensorMeta meta = graph_.tensors.at(y);
      resize_last(meta, count_of(parts[p]));
      graph_.tensors[result] = meta;
      for (auto& [name, arg] : product.args) {
        const auto* t = std::get_if<TensorName>(&arg);
        const bool is_weight = t && t->name == w->value, is_bias = t && b && t->name == b->value;
        if (is_weight) arg = TensorName{part_of(*w, parts[p], p, is_linear ? 0 : 1, node)};
        if (is_bias) arg = TensorName{part_of(*b, parts[p], p, 0, node)};
      }
      added_.push_back(product);
      for (const View& view : views)
        if (view.columns.offset == parts[p].offset && view.columns.sizes == parts[p].sizes &&
            view.columns.strides == parts[p].strides)
          add_view(node, result, view);
    }
    gone_.insert(passed_.begin(), passed_.end());
    return true;
  }

  static void resize_last(TensorMeta& meta, int64_t size) {
    meta.sizes.back() = size, meta.offset = 0;
    int64_t inner = 1;
    for (size_t d = meta.sizes.size(); d-- > 0; inner *= meta.sizes[d]) meta.strides[d] = inner;
  }

  /// Matrices of experts that one parameter is parts of.
  bool divide_experts(const Node& node) {
    if (node.target != "tessera.experts") return false;
    const auto up = std::get<std::vector<TensorName>>(*node.find("up"));
    const auto parts = std::get<std::vector<int64_t>>(*node.find("parts")),
               part = std::get<std::vector<int64_t>>(*node.find("part"));
    const size_t axis = std::get<bool>(*node.find("up_turned")) ? 2 : 1;
    InputSpec* const w = parameter(up[0].name);
    std::vector<int64_t> order = part;
    std::sort(order.begin(), order.end());
    if (!w || std::ssize(up) != parts[0] || up.size() < 2) return false;
    for (size_t i = 0; i < up.size(); ++i)
      if (up[i].name != up[0].name || order[i] != static_cast<int64_t>(i)) return false;
    const int64_t size = graph_.tensors.at(w->value).sizes[axis] / parts[0];
    const bool strided = std::get<bool>(*node.find("strided"));
    const InputSpec whole = *w;
    std::vector<TensorName> of_part;
    for (int64_t p = 0; p < parts[0]; ++p)
      of_part.push_back({part_of(whole, {{size}, {strided ? parts[0] : 1}, strided ? p : p * size},
                                 static_cast<size_t>(p), axis, node)});
    Node divided = node;
    std::vector<TensorName> in_order;
    for (const int64_t p : part) in_order.push_back(of_part[static_cast<size_t>(p)]);
    for (auto& [name, arg] : divided.args) {
      if (name == "up") arg = in_order;
      if (name == "parts") arg = std::vector<int64_t>(up.size(), 1);
      if (name == "part") arg = std::vector<int64_t>(up.size(), 0);
    }
    added_.push_back(divided);
    return true;
  }

  /// The parameter for some columns of one, which lie along one of its axes. Returns the value that
  /// has them along one axis.
  std::string part_of(const InputSpec& whole, const Span& columns, size_t number, size_t axis,
                      const Node& node) {
    const TensorMeta meta = graph_.tensors.at(whole.value);
    const StoredTensor stored = program_.stored.at(whole.name);
    InputSpec part = whole;
    part.name = fmt::format("{}.part{}", whole.name, number);
    part.value = fmt::format("{}__part{}", whole.value, number);
    part.part_of = whole.name;
    const auto within = [&](const TensorMeta& of) {
      TensorMeta m = of;
      const int64_t stride = of.strides[axis];
      const auto at = static_cast<std::ptrdiff_t>(axis);
      for (auto* list : {&m.sizes, &m.strides}) list->erase(list->begin() + at);
      m.symbols.assign(of.sizes.size() - 1 + columns.sizes.size(), "");
      m.sizes.insert(m.sizes.begin() + at, columns.sizes.begin(), columns.sizes.end());
      std::vector<int64_t> strides = columns.strides;
      for (int64_t& s : strides) s *= stride;
      m.strides.insert(m.strides.begin() + at, strides.begin(), strides.end());
      m.offset += columns.offset * stride;
      return m;
    };
    program_.parts[whole.name].push_back({part.name, within(meta)});
    program_.stored[part.name] = {stored.entry, within(stored.meta)};
    TensorMeta own = within(meta);
    own.offset = 0;
    int64_t inner = 1;
    for (size_t d = own.sizes.size(); d-- > 0; inner *= own.sizes[d]) own.strides[d] = inner;
    graph_.tensors[part.value] = own;
    made_[whole.name].push_back(part);
    if (columns.sizes.size() == 1) return part.value;
    Node view = node;
    view.target = "aten.view.default";
    TensorMeta joined = meta;
    joined.sizes[axis] = count_of(columns);
    inner = 1;
    for (size_t d = joined.sizes.size(); d-- > 0; inner *= joined.sizes[d])
      joined.strides[d] = inner;
    view.args = {{"self", TensorName{part.value}}, {"size", joined.sizes}};
    view.outputs = {part.value + "_joined"};
    graph_.tensors[view.outputs[0]] = joined;
    added_.push_back(view);
    return view.outputs[0];
  }

  /// What `view` was, of a part's result.
  void add_view(const Node& node, const std::string& result, const View& view) {
    const TensorMeta meta = graph_.tensors.at(view.value);
    Node cut = node, turn = node;
    cut.target = "aten.view.default", turn.target = "aten.permute.default";
    TensorMeta in_order = meta;
    std::vector<int64_t> back(view.order.size());
    int64_t inner = 1;
    for (size_t i = view.order.size(); i-- > 0;) {
      const size_t a = view.order[i];
      in_order.sizes[i] = meta.sizes[a], in_order.symbols[i] = meta.symbols[a];
      in_order.strides[i] = inner;
      inner *= meta.sizes[a];
      back[a] = static_cast<int64_t>(i);
    }
    in_order.offset = 0;
    cut.args = {{"self", TensorName{result}}, {"size", in_order.sizes}};
    cut.outputs = {view.value + "__cut"};
    graph_.tensors[cut.outputs[0]] = in_order;
    turn.args = {{"self", TensorName{cut.outputs[0]}}, {"dims", back}};
    turn.outputs = {view.value};
    added_.push_back(cut), added_.push_back(turn);
  }

  ExportedProgram& program_;
  Nodes& graph_;
  std::map<std::string, std::vector<size_t>> readers_;
  std::set<std::string> kept_;                          // outputs and the like
  std::map<std::string, std::vector<InputSpec>> made_;  // parts, by the parameter's name
  std::map<std::string, Span> copied_;                  // copies, and where in the result they lay
  std::set<size_t> passed_, gone_;                      // views between a result and its parts
  std::vector<Node> added_;
};

}  // namespace

void find_parts(ExportedProgram& program) {
  program.state = program.inputs;
  KeyBiases biases(program);
  biases.find();
  PartFinder(program).run();
  biases.stop();
}

}  // namespace tessera::pytorch
