#include <cmath>
#include <map>
#include <vector>

#include "ops/infer.h"
#include "tessera/ops.h"

namespace tessera {

namespace {

const std::map<std::string, Tensor (*)(Tensor, Loc)>& known_activations() {
  static const std::map<std::string, Tensor (*)(Tensor, Loc)> functions = {
      {"identity", identity},
      {"linear", identity},
      {"relu", relu},
      {"gelu", gelu},
      {"silu", silu},
      {"swish", silu},
      {"sigmoid", sigmoid},
      {"tanh", tanh},
      {"softplus", softplus},
      {"elu", elu},
      {"selu", selu},
      {"square", square},
      {"gelu_erf",
       [](Tensor t, Loc l) { return mul(t * 0.5, erf(t * std::sqrt(0.5), l) + 1.0, l); }},
      {"exp", exp},
      {"leaky_relu", [](Tensor t, Loc l) { return leaky_relu(t, 0.2, l); }},
  };
  return functions;
}

}  // namespace

void require_activation(const std::string& function, Loc at) {
  std::vector<std::string> names;
  for (const auto& [known, f] : known_activations()) names.push_back(known);
  const std::map<std::string, std::string> gates = {
      {"swiglu", "silu"}, {"geglu", "gelu"}, {"reglu", "relu"}, {"glu", "sigmoid"}};
  const auto gate = gates.find(function);
  TESSERA_REQUIRE(
      known_activations().contains(function), "[activate] unknown function '{}'{} ({})", function,
      gate == gates.end()
          ? suggestion(function, names)
          : fmt::format("; it is a product of two: {{\"{}\", \"linear\"}}", gate->second),
      where(at));
}

Tensor activate(Tensor x, const std::string& function, Loc at) {
  require_activation(function, at);
  if (function == "identity" || function == "linear") return x;
  return known_activations().at(function)(x, at);
}

}  // namespace tessera
