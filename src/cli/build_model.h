// Building a job's model, with the checks that include/tessera/cli.h promises.
#pragma once

#include <cstdint>

#include "base/fail.h"
#include "base/thrown.h"
#include "cli/commands.h"

namespace tessera::cli {

/// Of activations. With train.dtype=float8 they are bfloat16, and the operands of products float8.
DType activations_of(const Config& config);

/// The model of the job in `graph`, for `batch` examples. Throws a usage error that names the rule
/// of ModelSpec::build that the model breaks.
nn::Model build_model(const Job& job, Graph& graph, int64_t batch, bool partial);

/// The result of a function of the model. What it throws besides Error becomes a usage error.
template <class Function>
auto of_program(const Job& job, const char* name, const Function& function) {
  try {
    return function();
  } catch (const Error&) {
    throw;
  } catch (...) {
    fail(ErrorKind::usage, "the {} of model '{}' failed: {}", name, job.spec->name, thrown_text());
  }
}

/// Whether MODEL is a folder of Hugging Face. Throws a usage error for a folder without
/// config.json.
bool is_folder_model(const std::string& model);
/// The model of the folder: reads its config.json. Throws as ModelFolder.
std::shared_ptr<const ModelSpec> folder_model(const std::string& path);

/// Whether MODEL is a program that PyTorch exported: m.pt2.
bool is_program_model(const std::string& model);
/// The model of the program. Throws as PytorchModel.
std::shared_ptr<const ModelSpec> program_model(const std::string& path);
/// Its dims, a line each: name, size and the tensors that have it.
std::string names_of_program(const Config& config, const std::string& path);

/// What it writes out and stays plain ops, a note each.
std::vector<std::string> plain_ops_of_program(const Config& config, const std::string& path);

}  // namespace tessera::cli
