// The layer of all experts is a composite of grouped products. If ranks have slices of the experts,
// its blockwise form has the slices as a dim of their own: each rank computes the rows of its own
// experts from end to end, and only sums over the ranks are left, of the result and of the
// gradients for rows. The products alone would leave a sum before each activation.
//
// If the same ranks have slices of the tokens, rows can travel instead (RowExchange): a token goes
// to the owners of its choices and not to all ranks. That sends choices / ranks of the bytes. The
// tokens of a rank may be cut into parts ("row_parts"). Nodes are in the order in which they shall
// run: the rows of all parts, then products part by part, then the sums. So one part travels while
// another is multiplied; in the gradient, whose nodes are in reverse order, too.
//
// The gradient is a composite too, which computes the hidden rows as forward does. Equal ops on
// equal operands are added to a Program once, so nothing is computed again unless the model says so
// (recompute()).
#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "nn/activations.h"
#include "nn/row_exchange.h"
#include "nn/stored.h"
#include "tessera/nn_moe.h"
#include "tessera/op.h"

namespace tessera::nn {

namespace {

using Tensors = std::vector<Tensor>;

constexpr int64_t kMostParts = 8;  ///< more would only make small products

/// The dim of the indices that x lacks.
std::string choices_of(const Tensors& in) {
  return in[1].shape().without(in[0].shape().names())[0].name;
}

/// Rows, and the indices and gates of each.
struct Rows {
  Tensor x, indices, gates;
  std::optional<RowExchange> exchange = {};  ///< then they are at the owners
};

/// Operands: x, indices, gates, down, up...; those of the gradient have the gradient of y last.
struct Operands {
  explicit Operands(const Tensors& in, const Attrs& attrs)
      : x(in[0]),
        indices(in[1]),
        gates(in[2]),
        down(in[3]),
        parts{Rows{x, indices, gates}},
        activations(attrs.get<std::vector<std::string>>("activations")),
        dim(attrs.get<std::string>("dim")) {
    up.assign(in.begin() + 4, in.begin() + 4 + static_cast<std::ptrdiff_t>(activations.size()));
  }
  Tensor x, indices, gates;
  Tensor down;
  std::vector<Rows> parts;  ///< all rows; of several parts each has an exchange
  Tensors up;
  std::vector<std::string> activations;
  std::string dim;  ///< that the indices choose from
  double used = 1;  ///< the share of rows that have an expert here

  /// The gates weight the hidden rows: fewer than the results, of which there is then one for each
  /// token.
  Tensor of_rows(const Rows& rows) const {
    std::vector<Dim> dims = rows.indices.shape().dims();
    for (const Dim& d : down.shape()) {
      if (!x.shape().has(d.name) && !rows.indices.shape().has(d.name) && d.name != dim)
        dims.push_back(d);
    }
    Tensor hidden;
    for (size_t i = 0; i < up.size(); ++i) {
      const Tensor part = activate(grouped_dot(rows.x, up[i], rows.indices, dim, Shape(dims), used),
                                   activations[i]);
      hidden = hidden.empty() ? part : hidden * part;
    }
    const Shape& to = rows.exchange ? rows.x.shape() : x.shape();
    return grouped_dot(hidden * rows.gates, down, rows.indices, dim, to, used);
  }
  Tensor result() const {
    if (!parts[0].exchange) return of_rows(parts[0]);
    Tensors back;
    for (const Rows& rows : parts) {
      const PreferScope prefer(x.graph(), rows.x);
      back.push_back(rows.exchange->to_tokens(of_rows(rows)));
    }
    Tensor sums;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Tensor part = parts[i].exchange->sums_of_tokens(back[i]);
      sums = sums.empty() ? part : sums + part;
    }
    return parts[0].exchange->by_tokens(sums, x.shape());
  }

  /// Of x, gates, down, up...
  Tensors gradient(const Tensor& of_result) const {
    Tensors wanted = {x, gates, down};
    wanted.insert(wanted.end(), up.begin(), up.end());
    return gradients(result() * of_result, wanted);
  }
};

/// Operands with the matrices in slices: `slices` slices, a dim with the experts' name.
Operands sliced_matrices(const Tensors& in, const Attrs& attrs, int64_t slices) {
  Operands all(in, attrs);
  const Dim whole = all.down.dim(all.dim), slice(all.dim, slices),
            inner(all.dim + "/inner", (whole.size + slices - 1) / slices);
  const auto sliced = [&](Tensor w) {
    const int64_t room = slices * inner.size;
    if (room > whole.size) w = pad(w, whole.name, 0, room - whole.size);
    std::vector<Dim> dims;
    for (const Dim& d : w.shape()) {
      if (d.name != whole.name) {
        dims.push_back(d);
      } else {
        dims.insert(dims.end(), {slice, inner});
      }
    }
    return reshape(w, Shape(dims));
  };
  all.down = sliced(all.down);
  for (Tensor& w : all.up) w = sliced(w);
  all.dim = inner.name;
  return all;
}

/// Each slice of the experts computes its rows of all tokens.
Operands in_slices(const Tensors& in, const Attrs& attrs, int64_t slices) {
  Operands all = sliced_matrices(in, attrs, slices);
  Graph& g = all.x.graph();
  const Dim slice(attrs.get<std::string>("dim"), slices);
  std::vector<Dim> dims = {slice};
  for (const Dim& d : all.indices.shape()) dims.push_back(d);
  const auto number = [&](int64_t value) {
    return constant(g, static_cast<double>(value), all.indices.dtype());
  };
  const Tensor first =
      (iota(g, slice, all.indices.dtype()) * number(all.down.dim(all.dim).size)).prefer(slice.name);
  const PreferScope prefer(g, first);
  Rows& rows = all.parts[0];
  rows.indices = broadcast(all.indices, Shape(dims)) - broadcast(first, Shape(dims));
  // So the gradients of several matrices for x are added before ranks add theirs.
  rows.x = broadcast(all.x, Shape{slice}.united(all.x.shape()));
  all.used = 1 / static_cast<double>(slices);
  return all;
}

/// Into how many parts the tokens of a rank are cut; 1: all rows travel at once.
int64_t row_parts(const Attrs& attrs) {
  return attrs.has("row_parts") ? std::min(kMostParts, attrs.get<int64_t>("row_parts")) : 1;
}

/// Each slice of the experts computes the rows that come from the slices of the tokens.
Operands in_exchange(const Tensors& in, const Attrs& attrs, const RowSlices& tokens,
                     int64_t slices) {
  const auto& dim = attrs.get<std::string>("dim");
  Operands all = sliced_matrices(in, attrs, slices);
  const int64_t parts = row_parts(attrs);
  all.parts.clear();
  for (int64_t part = 0; part < parts; ++part) {
    std::optional<Scope> name;
    if (parts > 1) name.emplace(all.x.graph(), fmt::format("part{}of{}", part + 1, parts));
    Rows rows;
    rows.exchange.emplace(all.indices, choices_of(in), in[3].dim(dim), tokens, slices,
                          attrs.get<double>("row_bound"), TokenPart{part, parts});
    rows.x = rows.exchange->tokens_to_owners(all.x);
    rows.gates = rows.exchange->choices_to_owners(all.gates);
    rows.indices = rows.exchange->indices_at_owners();
    all.used = rows.exchange->used();
    all.parts.push_back(std::move(rows));
  }
  return all;
}

/// Gives slices of a token dim to ranks that have the same slices, of which there are `copies`:
/// further slices of the dim before if it is large enough, else of a dim without slices.
void add_slices(const Shape& tokens, RowSlices& rows, size_t at) {
  const int64_t copies = rows.slices[at];
  if (at > 0 && !rows.dims[at - 1].empty()) {
    const int64_t all = rows.slices[at - 1] * copies;
    if (tokens.dim(rows.dims[at - 1]).size % all == 0) {
      rows.slices[at - 1] = all;
      rows.dims.erase(rows.dims.begin() + static_cast<std::ptrdiff_t>(at));
      rows.slices.erase(rows.slices.begin() + static_cast<std::ptrdiff_t>(at));
      return;
    }
  }
  Dim best("", 0);
  const auto is_even = [&](const Dim& d) { return d.size % copies == 0; };
  for (const Dim& d : tokens.without(rows.dims)) {
    if (best.size == 0 || std::pair(is_even(d), d.size) > std::pair(is_even(best), best.size))
      best = d;
  }
  rows.dims[at] = best.name;
}

/// How the ranks of `slices` slices of the experts have slices of the tokens, if it sends less to
/// exchange rows than to gather tokens. It does if a token chooses fewer experts than there are
/// slices. With as many it sends as much, and of more than two slices needs room for fewer rows, or
/// can be done in parts.
/// Nothing where a dim has a size of the run. `like`: the dim of x with the same ranks, or "".
std::optional<RowSlices> exchanged(const OpCall& call, const std::string& like, int64_t slices) {
  const Shape &x = call.in[0].shape, &indices = call.in[1].shape;
  const Shape choices = indices.without(x.names());
  if (choices.rank() != 1 || x.rank() != indices.rank()) return {};  // no choice for each token
  if (std::any_of(indices.begin(), indices.end(), [](const Dim& d) { return d.is_bounded; }))
    return {};
  const int64_t most = choices.elements();
  if (most > slices || (most == slices && slices == 2 && row_parts(call.attrs) == 1)) return {};
  RowSlices rows{like, {like}, {slices}};
  if (call.attrs.has("row_dims")) {
    const auto names = [&](const char* key) {
      return call.attrs.get<std::vector<std::string>>(key);
    };
    const auto numbers = [&](const char* key) { return call.attrs.get<std::vector<int64_t>>(key); };
    rows.dims = names("row_dims");
    rows.slices = numbers("row_slices");
    rows.name = rows.dims.size() == 1 ? rows.dims[0] : call.attrs.get<std::string>("dim") + "/rows";
    const Shape tokens = indices.without(choices.names());
    for (size_t i = 0; i < names("group_dims").size(); ++i) {
      const std::string dim = names("group_dims")[i];
      if (tokens.has(dim)) rows.groups.emplace_back(dim, numbers("group_slices")[i]);
    }
    const Shape free = tokens.without(Shape(rows.groups).names());
    for (size_t i = rows.dims.size(); i-- > 0;) {
      if (rows.dims[i].empty()) add_slices(free, rows, i);
    }
  }
  const auto is_token = [&](const std::string& dim) { return indices.has(dim); };
  if (!std::all_of(rows.dims.begin(), rows.dims.end(), is_token)) return {};
  return rows;
}

/// The inverse for the gradient of a matrix.
Tensor in_one(const Tensor& w, const std::string& dim, const Shape& shape) {
  std::vector<Dim> dims;
  const int64_t room = w.dim(dim).size * w.dim(dim + "/inner").size;
  for (const Dim& d : shape) dims.push_back(d.name == dim ? Dim(dim, room) : d);
  const Tensor all = reshape(w, Shape(dims));
  return room == shape.dim(dim).size ? all : slice(all, dim, 0, shape.dim(dim).size);
}

std::vector<ValueType> infer(const OpCall& call) { return {call.in[0]}; }

std::vector<ValueType> infer_gradient(const OpCall& call) {
  std::vector<ValueType> types = {call.in[0], call.in[2]};
  types.insert(types.end(), call.in.begin() + 3, call.in.end() - 1);
  return types;
}

Tensors body(const Tensors& in, const Attrs& attrs) { return {Operands(in, attrs).result()}; }

Tensors gradient_body(const Tensors& in, const Attrs& attrs) {
  return Operands(in, attrs).gradient(in.back());
}

bool is_of_experts(const OpCall& call, const std::string& dim) {
  return dim == call.attrs.get<std::string>("dim");
}

/// The forms by slices of the experts. Their ranks may have slices of the dim `tokens` of x, too.
template <class Make>
Tensors in_form(const OpCall& call, const Tensors& in, const std::string& tokens, int64_t slices,
                const Make& make) {
  if (const auto rows = exchanged(call, tokens, slices))
    return make(in_exchange(in, call.attrs, *rows, slices));
  const Operands all = in_slices(in, call.attrs, slices);
  const PreferScope prefer(in[0].graph(), all.parts[0].indices);
  return make(all);
}

Tensors by_slices(const OpCall& call, const Tensors& in, const std::string& dim,
                  const std::string& like, int64_t slices) {
  if (!is_of_experts(call, dim)) return {};
  return in_form(call, in, like, slices, [](const Operands& all) { return Tensors{all.result()}; });
}

Tensors gradient_by_slices(const OpCall& call, const Tensors& in, const std::string& dim,
                           const std::string& like, int64_t slices) {
  if (!is_of_experts(call, dim)) return {};
  return in_form(call, in, like, slices, [&](const Operands& all) {
    Tensors out = all.gradient(in.back());
    for (size_t i = 2; i < out.size(); ++i) out[i] = in_one(out[i], dim, call.out[i].shape);
    return out;
  });
}

constinit const Op kExpertsGrad = {.name = "experts_grad",
                                   .infer = infer_gradient,
                                   .body = gradient_body,
                                   .by_slices = gradient_by_slices};

Tensors gradient(const GradCall& c) {
  Tensors in = c.in;
  in.push_back(c.grads[0]);
  Tensors out = c.graph.add(kExpertsGrad, in, c.attrs, Loc::current());
  out.insert(out.begin() + 1, Tensor());  // of the indices
  return out;
}

constinit const Op kExperts = {
    .name = "experts", .infer = infer, .gradient = gradient, .body = body, .by_slices = by_slices};

}  // namespace

Tensor experts(Tensor x, Tensor indices, Tensor gates, const Experts& w, Loc at) {
  return on_behalf_of("experts", at, [&] {
    TESSERA_REQUIRE(!w.up.empty() && w.up.size() == w.activations.size(),
                    "[experts] {} matrices 'up' and {} activations; each has one ({})", w.up.size(),
                    w.activations.size(), where(at));
    for (const std::string& function : w.activations) require_activation(function, at);
    TESSERA_REQUIRE(gates.shape() == indices.shape(),
                    "[experts] gates {} of indices {}; they have one shape ({})",
                    gates.shape().to_string(), indices.shape().to_string(), where(at));
    TESSERA_REQUIRE(indices.shape().has(w.choices) && !x.shape().has(w.choices),
                    "[experts] '{}' is a dim of the indices {} alone, and not of x {} ({})",
                    w.choices, indices.shape().to_string(), x.shape().to_string(), where(at));
    const Shape hidden = w.down.shape().without(x.shape().names()).without({w.dim});
    Tensors matrices = w.up;
    matrices.push_back(w.down);
    for (const Tensor& m : matrices) {
      const Shape model = m.shape().without({w.dim}).without(hidden.names());
      const auto is_like = [&](const Shape& one, const Shape& other) {
        return one.rank() == 1 && other.has(one[0].name) && other.dim(one[0].name) == one[0];
      };
      TESSERA_REQUIRE(
          m.shape().rank() == 3 && is_like(model, x.shape()) && is_like(hidden, m.shape()) &&
              m.shape().has(w.dim) && m.shape().dim(w.dim) == w.down.dim(w.dim),
          "[experts] a matrix is {} beside x {}, and down is {}; matrices have the dims '{}', "
          "one of x, and one that x lacks ({})",
          m.shape().to_string(), x.shape().to_string(), w.down.shape().to_string(), w.dim,
          where(at));
    }
    const int64_t rows = indices.shape().elements(), count = w.down.dim(w.dim).size;
    const double mean = static_cast<double>(rows) / static_cast<double>(count);
    TESSERA_REQUIRE(
        w.row_bound == 0 || w.row_bound >= 1,
        "[experts] row_bound {} is a bound below the mean: {} rows for {} experts are {:g} for "
        "each, of which {:g} would have places; give at least 1, or 0 for places for all rows "
        "({})",
        w.row_bound, rows, count, mean, std::max(0.0, w.row_bound * mean), where(at));
    Tensors in = {x, indices, read_as(gates, x.dtype()), w.down};
    in.insert(in.end(), w.up.begin(), w.up.end());
    const Attrs attrs = {
        {"dim", w.dim}, {"activations", w.activations}, {"row_bound", w.row_bound}};
    return x.graph().add(kExperts, in, attrs, at)[0];
  });
}

}  // namespace tessera::nn
