// Samples that a language model writes while it trains.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/text_tokens.h"
#include "tessera/generate.h"

namespace tessera::cli {

struct SampleFlags : SamplingFlags, TokenizerFlags {
  int64_t sample_every = 0;  ///< steps between samples; 0: none
  std::vector<std::string> prompts;
  void declare(FlagTable& table);
};

class Samples {
 public:
  /// Throws usage errors for a model that cannot write, a tokenizer that does not fit, and prompts
  /// that leave no room in the model's length. The generator, with parameters of its own, is made
  /// when it is first needed.
  Samples(const SampleFlags& args, const std::string& model, const Job& job, Cluster& cluster);
  /// Prompts, each with its text so far, by the parameters of `trained`. Collective.
  std::vector<std::pair<std::string, std::string>> write(Session& trained);

 private:
  const Job& job_;
  Cluster& cluster_;
  TextTokens vocabulary_;
  std::vector<std::string> prompts_;
  std::optional<int32_t> end_;  ///< as end_of_prompts()
  std::vector<GenerationRequest> requests_;
  std::unique_ptr<Generator> generator_;
};

}  // namespace tessera::cli
