#include "cli/writing.h"

#include "base/fail.h"

namespace tessera::cli {

nn::TransformerOptions writing_model(const Job& job, const char* what) {
  TESSERA_REQUIRE(static_cast<bool>(job.spec->transformer),
                  "{} needs a language model, and '{}' has no ModelSpec::transformer", what,
                  job.spec->name);
  nn::TransformerOptions o = job.spec->transformer(job.config);
  TESSERA_REQUIRE(
      o.causal,
      "{} needs a model that writes texts, and '{}' is an encoder, which fills in tokens of them",
      what, job.spec->name);
  return o;
}

std::optional<int32_t> end_of_prompts(const nn::TransformerOptions& model) {
  return model.encoder_layers > 0 ? std::optional(model.end_token) : std::nullopt;
}

std::unique_ptr<Generator> make_generator(const Job& job, Cluster& cluster,
                                          const WritingOptions& options) {
  GeneratorOptions o;
  o.mesh = job.mesh;
  o.layout = job.layout;
  o.rows = options.rows;
  o.context = options.context;
  o.vocabulary = options.vocabulary;
  o.choices = options.choices;
  o.beams = options.beams;
  o.parameters = parse_dtype(job.config.text("train.parameters").c_str());
  o.threads_per_rank = threads_of(job);
  o.strict_chunks = strict_chunks_of(job.config);
  o.device = job.device;
  return std::make_unique<Generator>(job.spec->transformer(job.config), cluster, o);
}

Checkpoint load_parameters(const Job& job, const std::string& model,
                           const std::vector<Checkpoint>& checkpoints, Generator& generator) {
  if (!checkpoints.empty())
    return load_first(generator.session(), checkpoints, generator.parameters());
  start_parameters(job, generator.session());
  return {model, 0, {}, ""};
}

std::vector<Checkpoint> checkpoints_to_read(const char* command, const std::string& directory,
                                            Job& job) {
  TESSERA_REQUIRE(!directory.empty() || job.folder,
                  "{} needs --checkpoint DIR; only a folder with weights goes without", command);
  std::vector<Checkpoint> all;
  if (directory.empty()) return all;
  all = checkpoints_of(directory);
  take_stored_model(job, all[0]);
  return all;
}

}  // namespace tessera::cli
