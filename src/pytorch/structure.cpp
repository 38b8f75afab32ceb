// A pattern is read backwards from its last node, over values that nothing else reads. Its last
// node is then replaced by one of the layer; nodes whose results nobody reads any more go away.
#include "pytorch/structure.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>

#include "pytorch/experts.h"
#include "pytorch/reading.h"
#include "pytorch/rows.h"
#include "pytorch/writes.h"

namespace tessera::pytorch {

namespace {

constexpr double kHiddenLogit = -1e30;

class LayerFinder : private Reading {
 public:
  LayerFinder(ExportedProgram& program, const std::set<std::string>& changed)
      : Reading(program, changed) {}

  void run() {
    index();
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (is_changed(graph_.nodes[i]) || find_linear(i)) continue;
      find_matmul(i);
      if (!find_norm(i) && !find_weighted_norm(i) && !find_turned_halves(i) && !find_activation(i))
        find_attention(i);
    }
    rebuild(added_);
  }

 private:
  // ----------------------------------------------------------------------------------- patterns
  /// The value whose leading axes a view makes one, if it is that.
  std::string before_flat(const std::string& flat, size_t kept) const {
    const Node* view = made_by(flat, kViews);
    const std::string x = view ? tensor(*view, "self") : "";
    if (x.empty() || rank(flat) != kept + 1 || rank(x) < kept + 1) return "";
    const std::vector<int64_t>&from = meta(x).sizes, &to = meta(flat).sizes;
    return std::equal(to.begin() + 1, to.end(), from.end() - static_cast<long>(kept)) ? x : "";
  }

  /// Whether `to` are the leading sizes of `from`, and these last ones.
  static bool has_sizes(const std::vector<int64_t>& to, const std::vector<int64_t>& from,
                        size_t leading, const std::vector<int64_t>& last) {
    return to.size() == leading + last.size() && from.size() >= leading &&
           std::equal(from.begin(), from.begin() + static_cast<long>(leading), to.begin()) &&
           std::equal(last.begin(), last.end(), to.begin() + static_cast<long>(leading));
  }

  /// The value of which views, copies and an expansion of other axes than the last ones are.
  std::string before_expansion(std::string value, size_t last) const {
    while (const Node* step = made_by(value, "view.default expand.default clone.default")) {
      const std::string from = tensor(*step, "self");
      const std::vector<int64_t>&a = meta(from).sizes, &b = meta(value).sizes;
      if (a.size() < last || !std::equal(a.end() - static_cast<long>(last), a.end(),
                                         b.end() - static_cast<long>(last)))
        break;
      value = from;
    }
    return value;
  }

  /// linear(x, w) of an x that has other strides: its product by w for each of its matrices.
  bool find_strided_linear(size_t at) {
    const Node& node = graph_.nodes[at];
    if (node.target != "aten.bmm.default") return false;
    const Node* turned =
        made_by(before_expansion(tensor(node, "mat2"), 2), "permute.default t.default");
    const std::string x = before_expansion(tensor(node, "self"), 3);
    if (!turned || rank(tensor(*turned, "self")) != 2 || rank(x) != 3) return false;
    if (turned->find("dims") && numbers(*turned, "dims") != std::vector<int64_t>{1, 0})
      return false;
    graph_.nodes[at] =
        replaced(at, "aten.linear.default",
                 {{"input", TensorName{x}}, {"weight", TensorName{tensor(*turned, "self")}}});
    return true;
  }

  /// linear(x, w) as core ATen has it: the product of flat rows by w transposed, and a view back.
  bool find_linear(size_t at) {
    if (find_strided_linear(at)) return true;
    const Node& node = graph_.nodes[at];
    if (node.outputs.size() != 1) return false;
    const std::string& y = node.outputs[0];
    const Node* view = made_by(y, kViews);
    const std::string flat = view ? tensor(*view, "self") : y;
    const Node* product = made_by(flat, "addmm.default mm.default");
    if (!product || (view && !is_read_once(flat)) || product->find("alpha") ||
        product->find("beta"))
      return false;
    const bool adds = product->target == "aten.addmm.default";
    const std::string rows = tensor(*product, adds ? "mat1" : "self");
    const Node* turned = made_by(tensor(*product, "mat2"), "permute.default t.default");
    if (!turned || rows.empty()) return false;
    const std::string w = tensor(*turned, "self"), bias = adds ? tensor(*product, "self") : "";
    if (turned->find("dims") && numbers(*turned, "dims") != std::vector<int64_t>{1, 0})
      return false;
    if (rank(w) != 2 || (adds && (bias.empty() || rank(bias) != 1))) return false;
    std::string x = view ? before_flat(rows, 1) : rows;
    if (x.empty() || !has_sizes(meta(y).sizes, meta(x).sizes, rank(x) - 1, {meta(w).sizes[0]}))
      return false;
    std::vector<std::pair<std::string, Argument>> args = {{"input", TensorName{x}},
                                                          {"weight", TensorName{w}}};
    if (adds) args.emplace_back("bias", TensorName{bias});
    graph_.nodes[at] = replaced(at, "aten.linear.default", args);
    return true;
  }

  /// matmul(a, b) of more than three axes as core ATen has it.
  void find_matmul(size_t at) {
    const Node& node = graph_.nodes[at];
    if (node.outputs.size() != 1) return;
    const std::string& y = node.outputs[0];
    const Node* view = made_by(y, kViews);
    const Node* product = view ? made_by(tensor(*view, "self"), "bmm.default") : nullptr;
    if (!product || !is_read_once(tensor(*view, "self"))) return;
    std::vector<std::string> operands;
    for (const char* arg : {"self", "mat2"}) {
      std::string x = before_flat(tensor(*product, arg), 2);
      while (const Node* same = x.empty() ? nullptr : made_by(x, "clone.default expand.default")) {
        if (meta(tensor(*same, "self")).sizes != meta(x).sizes) break;
        x = tensor(*same, "self");
      }
      if (x.empty() || rank(x) != rank(y)) return;
      operands.push_back(x);
    }
    const std::vector<int64_t>&a = meta(operands[0]).sizes, &b = meta(operands[1]).sizes;
    const size_t leading = rank(y) - 2;
    if (!has_sizes(meta(y).sizes, a, leading, {a[leading], b[leading + 1]}) ||
        !std::equal(a.begin(), a.begin() + static_cast<long>(leading), b.begin()))
      return;
    graph_.nodes[at] =
        replaced(at, "aten.matmul.default",
                 {{"self", TensorName{operands[0]}}, {"other", TensorName{operands[1]}}});
  }

  static constexpr const char* kViews = "view.default _unsafe_view.default reshape.default";

  /// The softmax that a program guards against rows where all is hidden: where(all hidden, 0, it).
  std::string guarded_softmax(const std::string& value) const {
    const Node* choice = made_by(value, "where.self");
    const Node* zero = choice ? made_by(tensor(*choice, "self"), "full_like.default") : nullptr;
    const Node* none =
        choice ? made_by(tensor(*choice, "condition"), "logical_not.default") : nullptr;
    const Node* any = none ? made_by(tensor(*none, "self"), "any.dim") : nullptr;
    const Node* seen = any ? made_by(tensor(*any, "self"), "logical_not.default") : nullptr;
    const Node* hidden = seen ? made_by(tensor(*seen, "self"), "eq.Scalar") : nullptr;
    const Node* softmax =
        hidden ? made_by(tensor(*choice, "other"), "_softmax.default softmax.int") : nullptr;
    return softmax && tensor(*softmax, "self") == tensor(*hidden, "self") &&
                   number(*zero, "fill_value") == 0.0 && number(*hidden, "other") == -INFINITY
               ? tensor(*choice, "other")
               : "";
  }

  /// x rsqrt(mean(x^2) + eps) over the last axis, and its product with a weight of one axis.
  bool find_norm(size_t at) {
    const Node& node = graph_.nodes[at];
    if (node.target != "aten.mul.Tensor") return false;
    const std::string a = tensor(node, "self"), b = tensor(node, "other");
    for (const auto& [x, r] : {std::pair{a, b}, std::pair{b, a}}) {
      const Node* root = made_by(r, "rsqrt.default");
      if (!root || !is_read_once(r)) continue;
      const Node* sum = made_by(tensor(*root, "self"), "add.Tensor add.Scalar");
      if (!sum || !is_read_once(tensor(*root, "self")) || number(*sum, "alpha").value_or(1) != 1)
        continue;
      const std::optional<double> eps = number(*sum, "other");
      const Node* mean = made_by(tensor(*sum, "self"), "mean.dim");
      if (!eps || !mean || !is_read_once(tensor(*sum, "self"))) continue;
      const std::string squared = tensor(*mean, "self");
      const Node* square = made_by(squared, "pow.Tensor_Scalar square.default mul.Tensor");
      if (!square || !is_read_once(squared) || !is_last_axis(*mean, "dim", squared)) continue;
      const bool is_square =
          square->target == "aten.square.default" ||
          (square->target == "aten.pow.Tensor_Scalar" && number(*square, "exponent") == 2.0) ||
          (square->target == "aten.mul.Tensor" && tensor(*square, "other") == x);
      const Argument* keeps = mean->find("keepdim");
      if (!is_square || tensor(*square, "self") != x || rank(x) < 2 || !keeps ||
          !std::holds_alternative<bool>(*keeps) || !std::get<bool>(*keeps))
        continue;
      const int64_t width = meta(x).sizes.back();
      std::vector<std::pair<std::string, Argument>> args = {
          {"input", TensorName{x}},
          {"normalized_shape", std::vector<int64_t>{width}},
          {"weight", Argument()},
          {"eps", *eps}};
      graph_.nodes[at] = replaced(at, "aten.rms_norm.default", args);
      return true;
    }
    return false;
  }

  /// The product of a norm without a weight and one, where nothing else reads the norm.
  bool find_weighted_norm(size_t at) {
    const Node& node = graph_.nodes[at];
    if (node.target != "aten.mul.Tensor") return false;
    const std::string a = tensor(node, "self"), b = tensor(node, "other");
    for (const auto& [y, weight] : {std::pair{a, b}, std::pair{b, a}}) {
      if (y.empty() || weight.empty() || !is_read_once(y)) continue;
      const std::string normed = before_casts(y);
      const Node* norm = made_by(normed, "rms_norm.default");
      if (!norm || !is_read_once(normed) || !tensor(*norm, "weight").empty() ||
          meta(weight).sizes != std::vector<int64_t>{meta(normed).sizes.back()})
        continue;
      std::vector<std::pair<std::string, Argument>> args = norm->args;
      for (auto& [name, arg] : args)
        if (name == "weight") arg = TensorName{weight};
      graph_.nodes[at] = replaced(at, "aten.rms_norm.default", args);
      return true;
    }
    return false;
  }

  /// cat([-x[half:], x[:half]]) along the last axis.
  bool find_turned_halves(size_t at) {
    const Node& node = graph_.nodes[at];
    const Argument* given = node.find("tensors");
    const auto* parts = given ? std::get_if<std::vector<TensorName>>(given) : nullptr;
    if (node.target != "aten.cat.default" || !parts || parts->size() != 2) return false;
    const Node* negative = made_by((*parts)[0].name, "neg.default");
    const auto half_of = [&](const std::string& value) -> std::pair<std::string, int64_t> {
      if (const Node* slice = made_by(value, "slice.Tensor")) {
        const std::string x = tensor(*slice, "self");
        if (!is_last_axis(*slice, "dim", x) || number(*slice, "step").value_or(1) != 1) return {};
        const int64_t n = meta(x).sizes.back(), size = meta(value).sizes.back();
        const auto begin = static_cast<int64_t>(number(*slice, "start").value_or(0));
        if (2 * size != n || (begin != 0 && begin != size)) return {};
        return {x, begin == 0 ? 0 : 1};
      }
      const auto made = maker_.find(value);
      if (made == maker_.end()) return {};
      const Node& chunk = graph_.nodes[made->second];
      const bool splits =
          chunk.target == "aten.chunk.default" || chunk.target == "aten.split.Tensor";
      if (!splits || chunk.outputs.size() != 2) return {};
      const std::string x = tensor(chunk, "self");
      if (!is_last_axis(chunk, "dim", x) || 2 * meta(value).sizes.back() != meta(x).sizes.back())
        return {};
      return {x, chunk.outputs[0] == value ? 0 : 1};
    };
    if (!negative || !is_read_once((*parts)[0].name)) return false;
    const auto [second_of, second] = half_of(tensor(*negative, "self"));
    const auto [first_of, first] = half_of((*parts)[1].name);
    if (second_of.empty() || second_of != first_of || second != 1 || first != 0 ||
        !is_last_axis(node, "dim", first_of))
      return false;
    graph_.nodes[at] = replaced(at, "tessera.turned_halves", {{"self", TensorName{first_of}}});
    return true;
  }

  /// A function of one value that is written out in any way, known by its values: gelu, silu,
  /// softplus and sigmoid.
  bool find_activation(size_t at) {
    const Node& node = graph_.nodes[at];
    if (node.outputs.size() != 1 || !made_by(node.outputs[0], kLastOfActivation)) return false;
    struct Known {
      const char* target;
      const char* kind;
      double (*f)(double x);
    };
    static const Known kKnown[] = {
        {"aten.gelu.default", "tanh",
         [](double x) {
           return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
         }},
        {"aten.gelu.default", "none",
         [](double x) { return 0.5 * x * (1 + std::erf(x * std::sqrt(0.5))); }},
        {"aten.silu.default", "", [](double x) { return x / (1 + std::exp(-x)); }},
        {"aten.sigmoid.default", "", [](double x) { return 1 / (1 + std::exp(-x)); }},
        {"aten.softplus.default", "", [](double x) { return std::log1p(std::exp(x)); }},
    };
    std::vector<std::string> values = {node.outputs[0]};  // it may be a function of
    for (size_t i = 0; i < values.size() && values.size() < 16; ++i) {
      const Node* made = made_by(values[i], kScalarOps);
      for (const char* arg : {"self", "other"})
        if (made && !tensor(*made, arg).empty()) values.push_back(tensor(*made, arg));
    }
    for (size_t i = 1; i < values.size(); ++i) {
      if (meta(values[i]).sizes != meta(node.outputs[0]).sizes ||
          meta(values[i]).type != meta(node.outputs[0]).type)
        continue;
      for (const Known& known : kKnown) {
        bool fits = true;
        for (const double x : {-0.1, 1.3, -6.0, -3.1, -1.0, -0.6, 0.25, 0.8, 2.2, 3.7, 5.5}) {
          int steps = 0;
          const std::optional<double> y = number_of(node.outputs[0], values[i], x, steps);
          fits = y && std::abs(*y - known.f(x)) < 1e-7 * (1 + std::abs(x));
          if (!fits) break;
        }
        if (!fits) continue;
        std::vector<std::pair<std::string, Argument>> args = {{"self", TensorName{values[i]}}};
        if (*known.kind) args.emplace_back("approximate", std::string(known.kind));
        graph_.nodes[at] = replaced(at, known.target, args);
        return true;
      }
    }
    return false;
  }

  static constexpr const char* kLastOfActivation =
      "mul.Tensor mul.Scalar div.Tensor reciprocal.default log.default log1p.default";
  static constexpr const char* kScalarOps =
      "add.Tensor add.Scalar sub.Tensor sub.Scalar rsub.Scalar mul.Tensor mul.Scalar div.Tensor "
      "div.Scalar pow.Tensor_Scalar square.default neg.default exp.default log.default "
      "log1p.default tanh.default erf.default sigmoid.default reciprocal.default sqrt.default";

  /// An element of a value where that of `variable` is x. Nothing if it depends on something else.
  std::optional<double> number_of(const std::string& value, const std::string& variable, double x,
                                  int& steps) const {
    if (value == variable) return x;
    const Node* node = ++steps < 64 ? made_by(value, kScalarOps) : nullptr;
    if (!node) return {};
    const auto operand = [&](const char* arg) {
      const std::string name = tensor(*node, arg);
      return name.empty() ? number(*node, arg) : number_of(name, variable, x, steps);
    };
    const std::optional<double> a = operand("self");
    if (!a) return {};
    const std::string op = node->target.substr(5, node->target.find('.', 5) - 5);
    if (op == "pow") {
      const std::optional<double> exponent = number(*node, "exponent");
      return exponent ? std::optional(std::pow(*a, *exponent)) : std::nullopt;
    }
    if (op == "square") return *a * *a;
    if (op == "neg") return -*a;
    if (op == "exp") return std::exp(*a);
    if (op == "log") return std::log(*a);
    if (op == "log1p") return std::log1p(*a);
    if (op == "tanh") return std::tanh(*a);
    if (op == "erf") return std::erf(*a);
    if (op == "sigmoid") return 1 / (1 + std::exp(-*a));
    if (op == "reciprocal") return 1 / *a;
    if (op == "sqrt") return std::sqrt(*a);
    const std::optional<double> b = operand("other");
    if (!b || node->find("rounding_mode")) return {};
    const double alpha = number(*node, "alpha").value_or(1);
    if (op == "add") return *a + alpha * *b;
    if (op == "sub") return *a - alpha * *b;
    if (op == "rsub") return *b - alpha * *a;
    return op == "mul" ? *a * *b : *a / *b;
  }

  /// softmax(scale q k^T + mask) v.
  bool find_attention(size_t at) {
    const std::string product = "matmul.default bmm.default";
    const Node& node = graph_.nodes[at];
    if (node.outputs.size() != 1 || !made_by(node.outputs[0], product)) return false;
    const auto right = [](const Node& n) {
      return n.find("mat2") ? tensor(n, "mat2") : tensor(n, "other");
    };
    const std::string value = right(node);
    std::string weights = tensor(node, "self");
    double dropout = 0;
    while (true) {
      if (!is_read_once(weights)) return false;
      const Node* step = made_by(weights,
                                 "dropout.default to.dtype _to_copy.default float.default "
                                 "contiguous.default clone.default expand.default "
                                 "view.default reshape.default");
      if (!step) break;
      const std::string from = tensor(*step, step->find("input") ? "input" : "self");
      if (from.empty() || meta(from).sizes != meta(weights).sizes) return false;
      if (step->target == "aten.dropout.default") {
        const Argument* trains = step->find("train");
        if (trains && std::holds_alternative<bool>(*trains) && std::get<bool>(*trains))
          dropout = number(*step, "p").value_or(0);
      }
      weights = from;
    }
    const std::string guarded = guarded_softmax(weights);
    if (!guarded.empty()) weights = guarded;
    const Node* softmax = made_by(weights, "softmax.int _softmax.default");
    if (!softmax || !is_last_axis(*softmax, "dim", weights)) return false;
    std::string logits = before_casts(tensor(*softmax, "self"));
    std::string mask, hidden;  // an addend or what is seen; what is hidden
    double scale = 1, cap = 0;
    const Node* dot = nullptr;
    int readers = guarded.empty() ? 1 : 2;
    while (!dot) {
      if (readers_.at(logits) != readers) return false;
      readers = 1;
      if ((dot = made_by(logits, product))) break;
      if (const Node* step = made_by(logits, "mul.Tensor mul.Scalar div.Tensor div.Scalar")) {
        const std::optional<double> by = number(*step, "other");
        if (!by || *by == 0) return false;
        const bool divides = step->target.starts_with("aten.div");
        const std::string inner = tensor(*step, "self");
        const Node* tanh = made_by(inner, "tanh.default");
        if (tanh && !divides && cap == 0 && scale == 1 && is_read_once(inner)) {
          const std::string capped = tensor(*tanh, "self");
          const Node* over = made_by(capped, "div.Tensor div.Scalar");
          if (!over || !is_read_once(capped) || number(*over, "other") != by) return false;
          cap = *by;
          logits = tensor(*over, "self");
          continue;
        }
        scale *= divides ? 1 / *by : *by;
        logits = inner;
        continue;
      }
      if (scale != 1 || cap != 0 || !mask.empty() || !hidden.empty()) return false;
      if (const Node* step = made_by(logits, "add.Tensor")) {
        const std::string a = tensor(*step, "self"), b = tensor(*step, "other");
        if (a.empty() || b.empty() || number(*step, "alpha").value_or(1) != 1) return false;
        const bool left = leads_to_product(a, product);
        logits = left ? a : b, mask = left ? b : a;
      } else if (const Node* fill = made_by(logits, "masked_fill.Scalar")) {
        if (number(*fill, "value").value_or(0) > kHiddenLogit) return false;
        logits = tensor(*fill, "self"), hidden = tensor(*fill, "mask");
      } else if (const Node* choice = made_by(logits, "where.ScalarOther")) {
        if (number(*choice, "other").value_or(0) > kHiddenLogit) return false;
        logits = tensor(*choice, "self"), mask = tensor(*choice, "condition");
      } else {
        return false;
      }
      logits = before_casts(logits);
    }
    const std::string query = before_scaling(tensor(*dot, "self"), scale),
                      turned = before_scaling(right(*dot), scale);
    const size_t axes = rank(query);
    const std::string& masks = hidden.empty() ? mask : hidden;
    if (!masks.empty() && rank(masks) < 2) return false;
    if (axes < 3 || rank(turned) != axes || rank(value) != axes) return false;
    std::vector<Node> added;
    if (!hidden.empty()) {
      Node seen = graph_.nodes[at];
      seen.target = "aten.logical_not.default";
      seen.args = {{"self", TensorName{hidden}}};
      seen.outputs = {"tessera_seen_" + node.outputs[0]};
      graph_.tensors[seen.outputs[0]] = meta(hidden);
      added.push_back(seen);
      mask = seen.outputs[0];
    }
    Node key = graph_.nodes[at];
    key.target = "aten.transpose.int";
    key.args = {{"self", TensorName{turned}}, {"dim0", int64_t{-2}}, {"dim1", int64_t{-1}}};
    key.outputs = {"tessera_key_" + node.outputs[0]};
    TensorMeta of_key = meta(turned);
    const auto swap = [](auto& list) { std::swap(list[list.size() - 2], list[list.size() - 1]); };
    swap(of_key.sizes), swap(of_key.symbols), swap(of_key.strides);
    graph_.tensors[key.outputs[0]] = of_key;
    added.push_back(key);
    std::vector<std::pair<std::string, Argument>> args = {
        {"query", TensorName{query}}, {"key", TensorName{key.outputs[0]}},
        {"value", TensorName{value}}, {"attn_mask", Argument()},
        {"dropout_p", dropout},       {"scale", scale}};
    if (!mask.empty()) args[3].second = TensorName{mask};
    if (cap != 0) args.emplace_back("soft_cap", cap);
    graph_.nodes[at] = replaced(at, "aten.scaled_dot_product_attention.default", args);
    added_[at] = added;
    return true;
  }

  /// The value that a number scales, and the number in `scale` times it.
  std::string before_scaling(const std::string& value, double& scale) const {
    const Node* step = made_by(value, "mul.Scalar mul.Tensor");
    const std::optional<double> by = step ? number(*step, "other") : std::nullopt;
    if (!by || !is_read_once(value)) return value;
    scale *= *by;
    return tensor(*step, "self");
  }

  /// Whether a value is a product times numbers, or the cap of one.
  bool leads_to_product(std::string value, const std::string& product) const {
    while (const Node* step = made_by(
               value, "mul.Tensor mul.Scalar div.Tensor div.Scalar tanh.default to.dtype")) {
      if (step->find("other") && !number(*step, "other")) return false;
      value = tensor(*step, "self");
    }
    return made_by(value, product) != nullptr;
  }

  std::map<size_t, std::vector<Node>> added_;  // in front of a node
};

}  // namespace

void find_structure(ExportedProgram& program) {
  const std::set<std::string> changed = replace_writes(program);
  find_chosen_rows(program, changed);
  LayerFinder(program, changed).run();
  find_experts(program, changed);
}

}  // namespace tessera::pytorch
