// What the commands that write text share: generate, serve, and samples while training.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "cli/commands.h"
#include "tessera/generate.h"

namespace tessera::cli {

/// How texts are written for a job.
struct WritingOptions {
  int64_t rows = 1, context = 0, vocabulary = 0, choices = 0, beams = 0;  ///< as GeneratorOptions
};
/// The generator of a job whose model has ModelSpec::transformer, with random parameters.
/// Collective.
std::unique_ptr<Generator> make_generator(const Job& job, Cluster& cluster,
                                          const WritingOptions& options);
/// The model of a job, which writes texts. Throws a usage error for another, which `what` ("serve",
/// "--sample-every") cannot take.
nn::TransformerOptions writing_model(const Job& job, const char* what);
/// The token that ends prompts and texts of a model whose encoder reads the prompts; none for a
/// model that continues them.
std::optional<int32_t> end_of_prompts(const nn::TransformerOptions& model);
/// Loads the newest of `checkpoints` that can be read or, if there are none, the folder's weights.
/// Collective.
Checkpoint load_parameters(const Job& job, const std::string& model,
                           const std::vector<Checkpoint>& checkpoints, Generator& generator);
/// The checkpoints of a directory. Throws a usage error if there is neither it nor a folder's
/// model.
std::vector<Checkpoint> checkpoints_to_read(const char* command, const std::string& directory,
                                            Job& job);

}  // namespace tessera::cli
