// The operations, under their names in C++.
#include <map>

#include "callback.h"
#include "convert.h"
#include "tessera/loops.h"

namespace tessera::python {

namespace {

/// What the headers have no line for.
const std::map<std::string, const char*> pointwise_docs = {
    {"abs", "|x|, elementwise."},
    {"add", "a + b, elementwise. Dims match by name; a may be a number, or b."},
    {"cast", "x in another dtype: ts.f32, \"float32\", numpy.float32."},
    {"ceil", "The least whole number that is not below x, elementwise."},
    {"cos", "cos(x), elementwise; x in radians."},
    {"div",
     "a / b, elementwise; of whole numbers the quotient without its fraction. b = 0 gives 0 of "
     "whole numbers."},
    {"elu", "x where x > 0, else exp(x) - 1."},
    {"equal", "a == b, elementwise: bool."},
    {"erf", "The error function, elementwise."},
    {"erf_inv", "The inverse of erf(), elementwise."},
    {"exp", "e to the power of x, elementwise."},
    {"floor", "The greatest whole number that is not above x, elementwise."},
    {"floor_div", "floor(a / b), elementwise; 0 where whole numbers are divided by 0."},
    {"gelu", "x times the cumulative normal distribution of x, in its tanh form."},
    {"greater", "a > b, elementwise: bool."},
    {"greater_equal", "a >= b, elementwise: bool."},
    {"is_finite", "False where x is infinite or not a number, elementwise: bool."},
    {"is_inf", "True where x is infinite, elementwise: bool."},
    {"is_nan", "True where x is not a number, elementwise: bool."},
    {"leaky_relu", "x where x > 0, else alpha * x. PyTorch's alpha is 0.01."},
    {"less", "a < b, elementwise: bool."},
    {"less_equal", "a <= b, elementwise: bool."},
    {"log", "The natural logarithm, elementwise."},
    {"log1p", "log(1 + x), precise for small x, elementwise."},
    {"log_softmax", "log(softmax(x, dims))."},
    {"logical_and", "True where both bool tensors are true."},
    {"logical_not", "True where the bool tensor x is false."},
    {"logical_or", "True where one of two bool tensors is true, or both."},
    {"maximum", "The larger of a and b, elementwise."},
    {"minimum", "The smaller of a and b, elementwise."},
    {"mod",
     "a - b * floor(a / b), elementwise, with the sign of b; 0 where whole numbers have b = 0."},
    {"mul", "a * b, elementwise. Dims match by name; a may be a number, or b."},
    {"neg", "-x."},
    {"not_equal", "a != b, elementwise: bool."},
    {"pow", "a to the power of b, elementwise."},
    {"reciprocal", "1 / x, elementwise."},
    {"relu", "max(x, 0)."},
    {"round", "The nearest whole number, elementwise; of two the even one."},
    {"rsqrt", "1 / sqrt(x), elementwise."},
    {"selu", "elu() with the scales of Klambauer et al. 2017."},
    {"sigmoid", "1 / (1 + exp(-x)), elementwise."},
    {"sign", "-1, 0 or 1, elementwise."},
    {"silu", "x * sigmoid(x)."},
    {"sin", "sin(x), elementwise; x in radians."},
    {"softmax", "exp(x) divided by its sum over `dims`, each a Dim or a name."},
    {"softplus", "log(1 + exp(x)), elementwise."},
    {"sqrt", "The square root, elementwise."},
    {"square", "x * x."},
    {"sub", "a - b, elementwise. Dims match by name; a may be a number, or b."},
    {"tanh", "The hyperbolic tangent, elementwise."},
};

/// What the headers say of a function.
const char* doc_of(const std::string& name) {
#include "docstrings.inc"
  for (const auto* texts : {&docs, &pointwise_docs}) {
    const auto found = texts->find(name);
    if (found != texts->end()) return found->second;
  }
  return "";
}

OutOfRange out_of_range_of(const std::string& name) {
  if (name == "error") return OutOfRange::error;
  if (name == "zero") return OutOfRange::zero;
  if (name == "drop") return OutOfRange::drop;
  if (name == "clamp") return OutOfRange::clamp;
  throw Error(ErrorKind::usage, "out_of_range is '" + name + "'; known: error, zero, drop, clamp");
}

std::vector<Tensor> tensors_of(nb::handle x) {
  if (x.is_none()) return {};
  if (nb::isinstance<GraphTensor>(x)) return {nb::cast<Tensor>(x)};
  return nb::cast<std::vector<Tensor>>(x);
}

/// body(carries, slices, index) of Python, which returns (carries, stacked).
IterationBody body_of(const nb::callable& body, const std::string& loop) {
  return [body, loop](const Iteration& t) {
    const nb::object made = body(t.carries, t.slices, t.index);
    if (!nb::isinstance<nb::tuple>(made) || nb::len(made) != 2)
      throw nb::type_error(("the body of a " + loop + " returns (carries, stacked)").c_str());
    return IterationResults{tensors_of(made[0]), tensors_of(made[1]), {}};
  };
}

void bind_pointwise(nb::module_& m) {
#define X(name) \
  m.def(        \
      #name, [](const Tensor& x) { return name(x); }, At(), doc_of(#name), nb::arg("x"));
  TESSERA_UNARY_OPS(X)
  X(is_nan)
  X(is_inf)
  X(elu)
  X(selu)
  X(identity)
  X(stop_gradient)
  X(zeros_like)
  X(ones_like)
  X(sum_all)
  X(mean_all)
#undef X
  using Binary = Tensor (*)(Tensor, Tensor, Loc);
  const auto binary = [&](const char* name, Binary function) {
    m.def(
        name,
        [name, function](nb::object a, nb::object b) {
          const Tensor like = tensor_of(nb::isinstance<GraphTensor>(a) ? a : b, name);
          return function(operand(a, like, name), operand(b, like, name), Loc::current());
        },
        At(), doc_of(name), nb::arg("a"), nb::arg("b"));
  };
#define X(name) binary(#name, name);
  TESSERA_BINARY_OPS(X)
  X(logical_xor)
#undef X
  m.def(
      "where",
      [](const Tensor& condition, nb::object a, nb::object b) {
        const Tensor like = nb::isinstance<GraphTensor>(a)   ? nb::cast<Tensor>(a)
                            : nb::isinstance<GraphTensor>(b) ? nb::cast<Tensor>(b)
                                                             : constant(condition.graph(), 0);
        return where(condition, operand(a, like, "where"), operand(b, like, "where"));
      },
      At(), doc_of("where"), nb::arg("condition"), nb::arg("a"), nb::arg("b"));
  m.def(
      "cast", [](const Tensor& x, nb::handle dtype) { return cast(x, dtype_of(dtype)); }, At(),
      doc_of("cast"), nb::arg("x"), nb::arg("dtype"));
  m.def(
      "clip", [](const Tensor& x, double lo, double hi) { return clip(x, lo, hi); }, At(),
      doc_of("clip"), nb::arg("x"), nb::arg("lo"), nb::arg("hi"));
  m.def(
      "dropout", [](const Tensor& x, double rate) { return dropout(x, rate); }, At(),
      doc_of("dropout"), nb::arg("x"), nb::arg("rate"));
  m.def(
      "leaky_relu", [](const Tensor& x, double alpha) { return leaky_relu(x, alpha); }, At(),
      doc_of("leaky_relu"), nb::arg("x"), nb::arg("alpha") = 0.2);
}

void bind_reductions(nb::module_& m) {
#define X(name)                                                                                 \
  m.def(                                                                                        \
      #name, [](const Tensor& x, nb::handle dims) { return name(x, names_of(dims, x)); }, At(), \
      doc_of(#name), nb::arg("x"), nb::arg("dims"));
  // clang-format off
  X(reduce_sum) X(reduce_mean) X(reduce_max) X(reduce_min) X(reduce_prod) X(reduce_any)
  X(reduce_all) X(reduce_logsumexp) X(softmax) X(log_softmax)
  // clang-format on
#undef X
#define X(name)                                                                              \
  m.def(                                                                                     \
      #name, [](const Tensor& x, nb::handle dim) { return name(x, name_of(dim, x)); }, At(), \
      doc_of(#name), nb::arg("x"), nb::arg("dim"));
          X(argmax) X(argmin)
#undef X
              m.def(
                  "einsum_to",
                  [](const std::vector<Tensor>& xs, nb::handle out) {
                    return einsum(xs, shape_of(out, xs));
                  },
                  At(), doc_of("einsum"));
  m.def(
      "einsum", [](const std::vector<Tensor>& xs) { return einsum(xs); }, At(), doc_of("einsum"));
  m.def(
      "top_k",
      [](const Tensor& x, nb::handle dim, const Dim& k) {
        const TopK top = top_k(x, name_of(dim, x), k);
        return std::pair(top.values, top.indices);
      },
      At(), doc_of("top_k"), nb::arg("x"), nb::arg("dim"), nb::arg("k"));
  m.def(
      "sort",
      [](const Tensor& x, nb::handle dim, bool descending) {
        return sort(x, name_of(dim, x), descending);
      },
      At(), doc_of("sort"), nb::arg("x"), nb::arg("dim"), nb::arg("descending") = false);
  m.def(
      "argsort",
      [](const Tensor& x, nb::handle dim, bool descending) {
        return argsort(x, name_of(dim, x), descending);
      },
      At(), doc_of("argsort"), nb::arg("x"), nb::arg("dim"), nb::arg("descending") = false);
  m.def(
      "cumsum",
      [](const Tensor& x, nb::handle dim, bool exclusive, bool reverse) {
        return cumsum(x, name_of(dim, x), exclusive, reverse);
      },
      At(), doc_of("cumsum"), nb::arg("x"), nb::arg("dim"), nb::arg("exclusive") = false,
      nb::arg("reverse") = false);
  m.def(
      "linear_scan",
      [](const Tensor& x, const Tensor& decay, nb::handle dim, bool reverse) {
        return linear_scan(x, decay, name_of(dim, x), reverse);
      },
      At(), doc_of("linear_scan"), nb::arg("x"), nb::arg("decay"), nb::arg("dim"),
      nb::arg("reverse") = false);
  m.def(
      "cross_entropy",
      [](const Tensor& logits, const Tensor& labels, nb::handle classes, double z_loss) {
        return cross_entropy(logits, labels, name_of(classes, logits), z_loss);
      },
      At(), doc_of("cross_entropy"), nb::arg("logits"), nb::arg("labels"), nb::arg("classes"),
      nb::arg("z_loss") = 0.0);
  m.def(
      "attention",
      [](const Tensor& query, const Tensor& key, const Tensor& value, nb::object mask,
         nb::handle length, nb::handle memory_length, nb::handle key_dim, bool causal, double scale,
         double dropout, double soft_cap, std::optional<int64_t> window, nb::object segments,
         nb::object memory_segments, nb::object prefix, nb::object sinks, nb::object slopes,
         nb::object by_distance) {
        const auto given = [](const nb::object& t) {
          return t.is_none() ? Tensor() : tensor_of(t, "attention");
        };
        AttentionOptions o;
        o.length = name_of(length, query);
        o.memory_length = name_of(memory_length, key);
        o.key_dim = name_of(key_dim, query);
        o.causal = causal;
        o.scale = scale;
        o.dropout = dropout;
        o.soft_cap = soft_cap;
        o.window = window;
        o.segments = given(segments), o.memory_segments = given(memory_segments);
        o.prefix = given(prefix), o.sinks = given(sinks), o.slopes = given(slopes);
        o.by_distance = given(by_distance);
        return attention(query, key, value, given(mask), o);
      },
      At(), doc_of("attention"), nb::arg("query"), nb::arg("key"), nb::arg("value"),
      nb::arg("mask") = nb::none(), nb::arg("length") = "length",
      nb::arg("memory_length") = "memory_length", nb::arg("key_dim") = "d_head",
      nb::arg("causal") = false, nb::arg("scale") = 0.0, nb::arg("dropout") = 0.0,
      nb::arg("soft_cap") = 0.0, nb::arg("window") = nb::none(), nb::arg("segments") = nb::none(),
      nb::arg("memory_segments") = nb::none(), nb::arg("prefix") = nb::none(),
      nb::arg("sinks") = nb::none(), nb::arg("slopes") = nb::none(),
      nb::arg("by_distance") = nb::none());
}

void bind_shapes(nb::module_& m) {
  m.def(
      "transpose",
      [](const Tensor& x, nb::handle dims) { return transpose(x, shape_of(dims, {x})); }, At(),
      doc_of("transpose"), nb::arg("x"), nb::arg("dims"));
  m.def(
      "broadcast",
      [](const Tensor& x, nb::handle dims) { return broadcast(x, shape_of(dims, {x})); }, At(),
      doc_of("broadcast"), nb::arg("x"), nb::arg("dims"));
  m.def(
      "reshape", [](const Tensor& x, nb::handle dims) { return reshape(x, shape_of(dims, {x})); },
      At(), doc_of("reshape"), nb::arg("x"), nb::arg("dims"));
  m.def(
      "rename",
      [](const Tensor& x, nb::handle from, nb::handle to) {
        const std::string name = name_of(from, x);
        if (nb::isinstance<Dim>(to) && x.dim(name).size != nb::cast<Dim>(to).size)
          throw Error(ErrorKind::usage,
                      "[rename] dim '" + name + "' of '" + x.name() + "' has size " +
                          std::to_string(x.dim(name).size) + ", but " + text_of(nb::repr(to)) +
                          " is what it is to be; reshape() and slice() change sizes");
        return rename(x, name, name_of(to));
      },
      At(), "The same tensor with `dim` called `to`: a name, or a Dim of the same size.",
      nb::arg("x"), nb::arg("dim"), nb::arg("to"));
  m.def(
      "slice",
      [](const Tensor& x, nb::handle dim, int64_t begin, int64_t size) {
        return slice(x, name_of(dim, x), begin, size);
      },
      At(), doc_of("slice"), nb::arg("x"), nb::arg("dim"), nb::arg("begin"), nb::arg("size"));
  m.def(
      "pad",
      [](const Tensor& x, nb::handle dim, int64_t before, int64_t after, double value) {
        return pad(x, name_of(dim, x), before, after, value);
      },
      At(), doc_of("pad"), nb::arg("x"), nb::arg("dim"), nb::arg("before") = 0,
      nb::arg("after") = 0, nb::arg("value") = 0.0);
  m.def(
      "shift",
      [](const Tensor& x, nb::handle dim, int64_t offset, bool wrap) {
        return shift(x, name_of(dim, x), offset, wrap);
      },
      At(), doc_of("shift"), nb::arg("x"), nb::arg("dim"), nb::arg("offset"),
      nb::arg("wrap") = false);
  m.def(
      "dynamic_shift",
      [](const Tensor& x, const Tensor& offset, nb::handle dim, bool wrap) {
        return dynamic_shift(x, offset, name_of(dim, x), wrap);
      },
      At(), doc_of("dynamic_shift"), nb::arg("x"), nb::arg("offset"), nb::arg("dim"),
      nb::arg("wrap") = false);
  m.def(
      "dynamic_slice",
      [](const Tensor& x, const Tensor& begin, nb::handle dim, int64_t size) {
        return dynamic_slice(x, begin, name_of(dim, x), size);
      },
      At(), doc_of("dynamic_slice"), nb::arg("x"), nb::arg("begin"), nb::arg("dim"),
      nb::arg("size"));
  m.def(
      "dynamic_update",
      [](const Tensor& x, const Tensor& update, const Tensor& begin, nb::handle dim) {
        return dynamic_update(x, update, begin, name_of(dim, x));
      },
      At(), "x with `update` written at `begin` along `dim`: see dynamic_slice().", nb::arg("x"),
      nb::arg("update"), nb::arg("begin"), nb::arg("dim"));
  m.def(
      "concat",
      [](const std::vector<Tensor>& xs, nb::handle dim) { return concat(xs, name_of(dim)); }, At(),
      doc_of("concat"), nb::arg("xs"), nb::arg("dim"));
  m.def(
      "split",
      [](const Tensor& x, nb::handle dim, const std::vector<int64_t>& sizes) {
        return split(x, name_of(dim, x), sizes);
      },
      At(), doc_of("split"), nb::arg("x"), nb::arg("dim"), nb::arg("sizes"));
  m.def(
      "stack",
      [](const std::vector<Tensor>& xs, nb::handle dim) {
        if (nb::isinstance<Dim>(dim) && nb::cast<Dim>(dim).size != std::ssize(xs))
          throw Error(ErrorKind::usage, "[stack] " + std::to_string(xs.size()) +
                                            " tensors for the dim " + text_of(nb::repr(dim)));
        return stack(xs, name_of(dim));
      },
      At(), doc_of("stack"), nb::arg("xs"), nb::arg("dim"));
  m.def(
      "unstack", [](const Tensor& x, nb::handle dim) { return unstack(x, name_of(dim, x)); }, At(),
      doc_of("unstack"), nb::arg("x"), nb::arg("dim"));
  m.def(
      "gather",
      [](const Tensor& x, const Tensor& indices, nb::handle dim, const std::string& out_of_range) {
        return gather(x, indices, name_of(dim, x), out_of_range_of(out_of_range));
      },
      At(), doc_of("gather"), nb::arg("x"), nb::arg("indices"), nb::arg("dim"),
      nb::arg("out_of_range") = "error");
  m.def(
      "take_along",
      [](const Tensor& x, const Tensor& indices, nb::handle dim, const std::string& out_of_range) {
        return take_along(x, indices, name_of(dim, x), out_of_range_of(out_of_range));
      },
      At(), doc_of("take_along"), nb::arg("x"), nb::arg("indices"), nb::arg("dim"),
      nb::arg("out_of_range") = "error");
  m.def(
      "scatter_add",
      [](const Tensor& indices, const Tensor& updates, nb::handle out, nb::handle dim,
         const std::string& out_of_range) {
        return scatter_add(indices, updates, shape_of(out, {indices, updates}), name_of(dim),
                           out_of_range_of(out_of_range));
      },
      At(), doc_of("scatter_add"), nb::arg("indices"), nb::arg("updates"), nb::arg("out"),
      nb::arg("dim"), nb::arg("out_of_range") = "error");
  m.def(
      "scatter",
      [](const Tensor& x, const Tensor& indices, const Tensor& updates, nb::handle dim,
         const std::string& out_of_range) {
        return scatter(x, indices, updates, name_of(dim, x), out_of_range_of(out_of_range));
      },
      At(), doc_of("scatter"), nb::arg("x"), nb::arg("indices"), nb::arg("updates"), nb::arg("dim"),
      nb::arg("out_of_range") = "error");
  m.def(
      "one_hot",
      [](const Tensor& indices, const Dim& dim, nb::handle dtype) {
        return one_hot(indices, dim, 1, 0, dtype_of(dtype));
      },
      At(), doc_of("one_hot"), nb::arg("indices"), nb::arg("dim"), nb::arg("dtype") = "float32");
}

void bind_sources(nb::module_& m) {
  m.def(
      "constant",
      [](Graph& g, double value, nb::handle dtype, nb::handle dims) {
        return constant(g, value, dtype_of(dtype), shape_of(dims));
      },
      At(), doc_of("constant"));
  m.def(
      "constant_array",
      [](Graph& g, const DenseArray& values, nb::handle dims) {
        const Shape shape = shape_of(dims);
        Array whole = array_of(values);
        std::vector<int64_t> sizes;
        for (const Dim& d : shape) sizes.push_back(d.size);
        if (sizes != whole.sizes)
          throw Error(ErrorKind::usage, "[constant] the array has the sizes " +
                                            text_of(nb::cast(whole.sizes)) + ", but " +
                                            shape.to_string() + " is what it is given as");
        whole.dims = shape.names();
        return constant(g, whole);
      },
      At(), doc_of("constant"));
  m.def(
      "iota",
      [](Graph& g, const Dim& dim, nb::handle dtype) { return iota(g, dim, dtype_of(dtype)); },
      At(), doc_of("iota"));
  m.def(
      "random_uniform",
      [](Graph& g, nb::handle dims, double lo, double hi, nb::handle dtype) {
        return random_uniform(g, shape_of(dims), lo, hi, dtype_of(dtype));
      },
      At(), doc_of("random_uniform"));
  m.def(
      "truncated_normal",
      [](Graph& g, nb::handle dims, double mean, double stddev, nb::handle dtype) {
        return truncated_normal(g, shape_of(dims), mean, stddev, dtype_of(dtype));
      },
      At(), doc_of("truncated_normal"));
  m.def(
      "random_normal",
      [](Graph& g, nb::handle dims, double mean, double stddev, nb::handle dtype) {
        return random_normal(g, shape_of(dims), mean, stddev, dtype_of(dtype));
      },
      At(), doc_of("random_normal"));
}

void bind_loops(nb::module_& m) {
  m.def(
      "repeat",
      [](const Dim& layers, const Tensor& x, const std::function<Tensor(Tensor)>& layer) {
        return repeat(layers, x, layer);
      },
      At(), doc_of("repeat"), nb::arg("layers"), nb::arg("x"), nb::arg("layer"));
  m.def(
      "scan",
      [](Graph& g, const Dim& over, const std::vector<Tensor>& carries,
         const std::vector<Tensor>& slices, const nb::callable& body, bool own_parameters) {
        const IterationResults results = scan(g, over, carries, slices, body_of(body, "scan"),
                                              {.own_parameters = own_parameters});
        return std::pair(results.carries, results.stacked);
      },
      At(), doc_of("scan"));
  m.def(
      "while_loop",
      [](const std::function<Tensor(std::vector<Tensor>)>& condition, const nb::callable& body,
         const std::vector<Tensor>& carries, int64_t most) {
        const IterationResults results =
            while_loop(condition, body_of(body, "while_loop"), carries, most);
        return std::pair(results.carries, results.stacked);
      },
      At(), doc_of("while_loop"), nb::arg("condition"), nb::arg("body"), nb::arg("carries"),
      nb::arg("most"));
  m.def(
      "cond",
      [](const Tensor& predicate, const nb::callable& then, const nb::callable& otherwise) {
        return cond(
            predicate, [&] { return tensors_of(then()); }, [&] { return tensors_of(otherwise()); });
      },
      At(), doc_of("cond"), nb::arg("predicate"), nb::arg("then"), nb::arg("otherwise"));
  m.def(
      "recompute",
      [](Graph& g, const nb::callable& build) {
        return recompute(g, [&] { return tensors_of(build()); });
      },
      At(), doc_of("recompute"), nb::arg("graph"), nb::arg("build"));
  m.def(
      "gradients", [](const Tensor& y, const std::vector<Tensor>& xs) { return gradients(y, xs); },
      At(), doc_of("gradients"), nb::arg("y"), nb::arg("xs"));
}

void bind_inspection(nb::module_& m) {
  m.def(
      "print", [](const Tensor& x, const std::string& label) { return print(x, label); }, At(),
      doc_of("print"), nb::arg("x"), nb::arg("label") = "");
  m.def(
      "check_finite",
      [](const Tensor& x, const std::string& label) { return check_finite(x, label); }, At(),
      doc_of("check_finite"), nb::arg("x"), nb::arg("label") = "");
}

}  // namespace

void bind_ops(nb::module_& m) {
  bind_pointwise(m);
  bind_reductions(m);
  bind_shapes(m);
  bind_sources(m);
  bind_loops(m);
  bind_inspection(m);
}

}  // namespace tessera::python
