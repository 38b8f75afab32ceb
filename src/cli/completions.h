// The completions of the OpenAI API: from JSON to requests for a Generator, and back.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/text_stream.h"
#include "cli/text_tokens.h"
#include "tessera/generate.h"

namespace tessera::cli {

/// What a server allows and knows.
struct ServedModel {
  std::string name;
  const TextTokens& vocabulary;
  int64_t context = 0, model_vocabulary = 0;
  int64_t choices = 0;      ///< the most `logprobs`
  int64_t most_tokens = 0;  ///< of a request: prompts and new ones
  /// Of a model whose encoder reads the prompts: the token that ends them, and texts.
  std::optional<int32_t> end = {};
};

/// One call of /v1/completions.
class Completion {
 public:
  /// Throws usage errors that name the field: for what is no JSON object, a field that is not
  /// known or of another type or range, a feature that is not there, and prompts that do not fit.
  /// `seed`: if the call has none.
  Completion(const std::string& body, const ServedModel& model, uint64_t seed);
  Completion(const Completion&) = delete;

  /// For Generator::run(): n for each prompt. Texts end early once `stopping` is true.
  std::vector<GenerationRequest> requests(const std::atomic<bool>& stopping);
  /// The answer, for the results of these requests.
  nlohmann::json answer(const std::vector<Generation>& results, int64_t number);

 private:
  void read_prompts(const nlohmann::json& prompt);
  void read_rest(const nlohmann::json& body);
  void require_fits() const;
  nlohmann::json log_probs_of(const Generation& result, const std::vector<int32_t>& prompt) const;

  const ServedModel& model_;
  std::string name_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::string> stops_;
  Sampling sampling_ = {};
  int64_t max_tokens_ = 16, n_ = 1, log_probs_ = -1;  ///< log_probs_: -1 for none
  bool echo_ = false;
  std::vector<std::unique_ptr<TextStream>> streams_;
};

/// The body of an answer that is an error.
nlohmann::json error_body(const std::string& message, const char* type);

}  // namespace tessera::cli
