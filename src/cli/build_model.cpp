#include "cli/build_model.h"

#include <vector>

#include "base/fail.h"
#include "tessera/op.h"

namespace tessera::cli {

namespace {

/// True if a value that `loss` is computed from has this dtype. What is stored or fed does not
/// count: parameters have a dtype of their own.
bool computes_in(const Graph& graph, const Tensor& loss, DType dtype) {
  std::vector<char> seen(graph.values().size(), 0);
  std::vector<int> open = {loss.id()};
  while (!open.empty()) {
    const int value = open.back();
    open.pop_back();
    if (seen[static_cast<size_t>(value)]) continue;
    seen[static_cast<size_t>(value)] = 1;
    const Node& node = graph.producer(value);
    if (!node.in.empty() && graph.value(value).dtype == dtype) return true;
    open.insert(open.end(), node.in.begin(), node.in.end());
  }
  return false;
}

void require_loss(const std::string& name, const nn::Model& model) {
  TESSERA_REQUIRE(!model.loss.empty(), "the build of model '{}' gives no loss; set nn::Model::loss",
                  name);
  TESSERA_REQUIRE(model.loss.shape().rank() == 0,
                  "the loss of model '{}' is {}; it must be a scalar, as mean_all() makes", name,
                  model.loss.shape().to_string());
}

void require_inputs(const std::string& name, const nn::Model& model, int64_t batch, bool partial) {
  for (const Tensor& input : model.inputs) {
    const int d = input.shape().find("batch");
    TESSERA_REQUIRE(
        d >= 0 && input.shape()[d].size == batch && input.shape()[d].is_bounded == partial,
        "input '{}' of model '{}' is {}, without the dim nn::batch_dim({}, {}) that its build "
        "was asked for",
        input.name(), name, input.shape().to_string(), batch, partial);
  }
}

void require_dtype(const std::string& name, const Config& config, const Graph& graph,
                   const nn::Model& model) {
  const DType wanted = activations_of(config);
  if (wanted == DType::float32 || computes_in(graph, model.loss, wanted)) return;
  fail(ErrorKind::usage,
       "model '{}' ignores --dtype {}: nothing that its loss is computed from is {}; its build has "
       "to cast() to parse_dtype(config.text(\"train.dtype\")), or leave --dtype out",
       name, config.text("train.dtype"), to_string(wanted));
}

}  // namespace

DType activations_of(const Config& c) {
  const std::string& name = c.text("train.dtype");
  return name == "float8" ? DType::bfloat16 : parse_dtype(name.c_str());
}

nn::Model build_model(const Job& job, Graph& graph, int64_t batch, bool partial) {
  TESSERA_REQUIRE(job.spec->build != nullptr, "model '{}' cannot be built; set ModelSpec::build",
                  job.spec->name);
  nn::Model model =
      of_program(job, "build", [&] { return job.spec->build(graph, job.config, batch, partial); });
  require_loss(job.spec->name, model);
  require_inputs(job.spec->name, model, batch, partial);
  require_dtype(job.spec->name, job.config, graph, model);
  return model;
}

}  // namespace tessera::cli
