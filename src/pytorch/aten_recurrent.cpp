// Recurrent layers. The products with the inputs of all steps are one product; then a loop over the
// steps carries the hidden state.
#include "pytorch/aten.h"
#include "tessera/loops.h"

namespace tessera::pytorch {

namespace {

enum class Kind { lstm, gru, tanh, relu };

Kind cell_kind(const Call& c) {
  const std::string& op = c.node().target;
  if (op.find("lstm") != std::string::npos) return Kind::lstm;
  if (op.find("gru") != std::string::npos) return Kind::gru;
  return op.find("tanh") != std::string::npos ? Kind::tanh : Kind::relu;
}

struct Weights {
  Value input, hidden;
  std::optional<Value> input_bias, hidden_bias;
};

/// Of all steps the hidden states; the states after the last one: h, and c of an LSTM.
struct Layer {
  Value y;
  std::vector<Value> last;
};

/// The next states of those of before, of the parts of a step's input and of the hidden state's
/// products, in PyTorch's order of gates.
std::vector<Tensor> next_states(Kind kind, const std::vector<Tensor>& states,
                                const std::vector<Tensor>& x, const std::vector<Tensor>& h) {
  switch (kind) {
    case Kind::tanh:
      return {tanh(x[0] + h[0])};
    case Kind::relu:
      return {relu(x[0] + h[0])};
    case Kind::gru: {
      const Tensor reset = sigmoid(x[0] + h[0]), keep = sigmoid(x[1] + h[1]);
      const Tensor fresh = tanh(x[2] + reset * h[2]);
      return {fresh + keep * (states[0] - fresh)};
    }
    case Kind::lstm:
      break;
  }
  const Tensor cell = sigmoid(x[1] + h[1]) * states[1] + sigmoid(x[0] + h[0]) * tanh(x[2] + h[2]);
  return {sigmoid(x[3] + h[3]) * tanh(cell), cell};
}

/// x [steps, batch, features], states [batch, hidden].
Layer run_layer(Call& c, Kind kind, const Value& x, std::vector<Value> states, const Weights& w,
                bool is_reversed) {
  const int64_t hidden = c.size(w.hidden.axes[1]);
  const Value inputs = c.joined("tbi,gi,g->tbg", {x, w.input, w.input_bias}, [&](const Joined& j) {
    const Tensor y = contract(j.x[0], j.x[1], j.of('i'), j.out);
    return j.x[2].empty() ? y : y + j.x[2];
  });
  c.unify(inputs.axes[2], w.hidden.axes[0]);
  if (w.hidden_bias) c.unify(inputs.axes[2], w.hidden_bias->axes[0]);
  if (!c.cut(inputs.axes[2], hidden)) c.refuse("has gates that the program views in other parts");
  const Axis low = halves(c.atoms(), c.expand(inputs.axes[2]), hidden).first;
  c.unify(low, w.hidden.axes[1]);
  for (const Value& state : states) {
    c.unify(state.axes[0], inputs.axes[1]);
    c.unify(state.axes[1], low);
  }
  c.role(low, "hidden", 8);
  const AxisList axes = c.distinct({inputs.axes[0], inputs.axes[1], low});
  const AxisList state_axes = {axes[1], axes[2]};
  std::vector<Tensor> made;
  const auto run = [&] {
    const Dim steps = merged(c.dims(axes[0]), "unit_steps"), h = merged(c.dims(axes[2]), "unit_h");
    const Dim gates("recurrent__gates", c.size(inputs.axes[2]) / hidden);
    const Dim before("recurrent__before", hidden);
    const std::vector<Dim> batch = c.dims(axes[1]);
    const auto with_gates = [&](Tensor t, const Axis& axis) {
      const Dim both("recurrent__both", c.size(axis));
      return unmerge(one_dim(c, t, axis, both), both, {gates, h});
    };
    // Axes of x, of states and of weights under the names of the result.
    const auto as = [&](Tensor t, const Axis& from, const std::vector<Dim>& to) {
      std::vector<std::pair<std::string, std::string>> names;
      for (size_t i = 0; i < to.size(); ++i) names.emplace_back(c.dims(from)[i].name, to[i].name);
      return Call::having(renamed(t, names), to);
    };
    Tensor xs = with_gates(inputs.tensor, inputs.axes[2]);
    xs = one_dim(c, xs, inputs.axes[0], Dim("recurrent__steps", steps.size));
    xs = rename(as(xs, inputs.axes[1], batch), "recurrent__steps", steps.name);
    const auto reversed = [&](const Tensor& t) {
      return take_along(t, static_cast<double>(steps.size - 1) - iota(c.graph(), steps),
                        steps.name);
    };
    if (is_reversed) xs = reversed(xs);
    const Tensor weights =
        with_gates(one_dim(c, w.hidden.tensor, w.hidden.axes[1], before), w.hidden.axes[0]);
    const Tensor bias =
        w.hidden_bias ? with_gates(w.hidden_bias->tensor, w.hidden_bias->axes[0]) : Tensor();
    std::vector<Dim> state_dims = batch, product_dims = batch;
    state_dims.push_back(h);
    product_dims.push_back(gates), product_dims.push_back(h);
    std::vector<Tensor> starts;
    for (const Value& state : states) {
      Tensor t = one_dim(c, state.tensor, state.axes[1], Dim("recurrent__state", hidden));
      t = rename(as(t, state.axes[0], batch), "recurrent__state", h.name);
      starts.push_back(transpose(cast(t, c.dtype()), shape_of(state_dims)));
    }
    const auto step = [&](const std::vector<Tensor>& from, const Tensor& x_of_step) {
      Tensor product =
          einsum({rename(from[0], h.name, before.name), weights}, shape_of(product_dims));
      if (!bias.empty()) product = product + bias;
      std::vector<Tensor> x_parts, h_parts;
      for (int64_t g = 0; g < gates.size; ++g) {
        x_parts.push_back(pick(x_of_step, gates.name, g));
        h_parts.push_back(pick(product, gates.name, g));
      }
      std::vector<Tensor> to = next_states(kind, from, x_parts, h_parts);
      for (Tensor& t : to) t = transpose(t, shape_of(state_dims));
      return to;
    };
    if (steps.size == 1) {
      made = step(starts, pick(xs, steps.name, 0));
      made.insert(made.begin(), reshape(made[0], Shape({steps}).united(made[0].shape())));
    } else {
      const IterationResults all = scan(c.graph(), steps, starts, {xs}, [&](const Iteration& i) {
        const std::vector<Tensor> to = step(i.carries, i.slices[0]);
        return IterationResults{.carries = to, .stacked = {to[0]}};
      });
      made = {is_reversed ? reversed(all.stacked[0]) : all.stacked[0]};
      made.insert(made.end(), all.carries.begin(), all.carries.end());
    }
    for (Tensor& t : made) t = dims_again(c, t, h, axes[2]);
    made[0] = dims_again(c, made[0], steps, axes[0]);
    return made[0];
  };
  Layer layer{c.made(axes, run), {}};
  for (size_t i = 0; i < states.size(); ++i)
    layer.last.push_back(c.made(state_axes, [&] { return made[i + 1]; }));
  return layer;
}

/// lstm, gru and rnn: layers above one another, each in one direction or both.
std::vector<Value> recurrent(Call& c) {
  const Kind kind = cell_kind(c);
  Value x = c.value("input");
  const std::vector<Value> parameters = c.values("params");
  std::vector<Value> starts =
      kind == Kind::lstm ? c.values("hx") : std::vector<Value>{c.value("hx")};
  const bool has_batch = x.axes.size() == 3,
             batch_first = has_batch && c.flag("batch_first", false);
  if (!has_batch) {
    x.axes.insert(x.axes.begin() + 1, Axis());
    for (Value& start : starts) start.axes.insert(start.axes.begin() + 1, Axis());
  }
  if (batch_first) x = reordered(c, x, {1, 0, 2});
  const auto layers = static_cast<size_t>(c.whole("num_layers"));
  const size_t directions = c.flag("bidirectional", false) ? 2 : 1;
  const size_t each = c.flag("has_biases", true) ? 4 : 2;
  if (parameters.size() != layers * directions * each)
    c.refuse("has projections, which Tessera does not know");
  const double rate = c.flag("train", false) && c.trains() ? c.number("dropout", 0) : 0;
  std::vector<std::vector<Value>> last(starts.size());
  for (size_t l = 0; l < layers; ++l) {
    std::vector<Value> made;
    for (size_t d = 0; d < directions; ++d) {
      const size_t at = l * directions + d;
      Weights w{parameters[at * each], parameters[at * each + 1], {}, {}};
      if (each == 4)
        w.input_bias = parameters[at * each + 2], w.hidden_bias = parameters[at * 4 + 3];
      std::vector<Value> states;
      for (const Value& start : starts)
        states.push_back(element(c, start, 0, static_cast<int64_t>(at)));
      const Layer layer = run_layer(c, kind, x, states, w, d == 1);
      made.push_back(layer.y);
      for (size_t i = 0; i < last.size(); ++i) last[i].push_back(layer.last[i]);
    }
    x = concatenated(c, made, 2, c.dtype());
    if (rate > 0 && l + 1 < layers) x = c.made(x.axes, [&] { return dropout(c.full(x), rate); });
  }
  if (batch_first) x = reordered(c, x, {1, 0, 2});
  std::vector<Value> results = {x};
  for (const std::vector<Value>& states : last) results.push_back(stacked(c, states, 0, c.dtype()));
  if (!has_batch)
    for (Value& result : results) result.axes.erase(result.axes.begin() + 1);
  return results;
}

/// One step.
std::vector<Value> recurrent_cell(Call& c) {
  const Kind kind = cell_kind(c);
  Value x = c.value("input");
  std::vector<Value> states =
      kind == Kind::lstm ? c.values("hx") : std::vector<Value>{c.value("hx")};
  const bool has_batch = x.axes.size() == 2;
  x.axes.insert(x.axes.begin(), has_batch ? 1 : 2, Axis());
  if (!has_batch)
    for (Value& state : states) state.axes.insert(state.axes.begin(), Axis());
  const Weights w{c.value("w_ih"), c.value("w_hh"), c.find("b_ih"), c.find("b_hh")};
  std::vector<Value> last = run_layer(c, kind, x, states, w, false).last;
  if (!has_batch)
    for (Value& state : last) state.axes.erase(state.axes.begin());
  return last;
}

const Row kRecurrent[] = {
    {"lstm.input gru.input rnn_tanh.input rnn_relu.input", recurrent},
    {"lstm_cell.default gru_cell.default rnn_tanh_cell.default rnn_relu_cell.default",
     recurrent_cell},
};

}  // namespace

std::span<const Row> recurrent_rows() { return kRecurrent; }

}  // namespace tessera::pytorch
