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
#include "tessera/chat_template.h"
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
  const ChatTemplate* chat = nullptr;  ///< null: the model has none
  std::string why_no_chat = {};
};

enum class CompletionKind { text, chat };

/// One call of /v1/completions or /v1/chat/completions.
class Completion {
 public:
  /// Throws usage errors that name the field: for what is no JSON object, a field that is not
  /// known or of another type or range, a feature that is not there, and prompts that do not fit.
  /// `number`: of the call, for its id, and its seed if the call has none.
  Completion(const std::string& body, const ServedModel& model, int64_t number,
             CompletionKind kind);
  Completion(const Completion&) = delete;

  /// For TextQueue: n for each prompt, each once. Texts end early once `stopping` is true.
  std::vector<GenerationRequest> requests(const std::atomic<bool>& stopping);
  /// Notes the result of request `i`.
  void end(size_t i, Generation result);
  /// Whether all have ended.
  bool is_done() const { return ended_ == results_.size(); }
  /// The answer, when all have ended.
  nlohmann::json answer() const;

  /// Whether the answer is wanted piece by piece.
  bool streams() const { return stream_; }
  /// The pieces that have come since the last call, as server-sent events.
  std::string events();

  int64_t tokens_read() const;
  int64_t tokens_written() const;

 private:
  void read_prompts(const nlohmann::json& prompt);
  void read_messages(const nlohmann::json& messages);
  void read_rest(const nlohmann::json& body);
  void read_biases(const nlohmann::json& biases);
  void require_fits();
  bool is_chat() const { return kind_ == CompletionKind::chat; }
  const char* finish_reason(size_t i) const;
  nlohmann::json head(const char* object) const;
  nlohmann::json usage() const;
  nlohmann::json log_probs_of(const Generation& result, const std::vector<int32_t>& prompt) const;
  nlohmann::json chat_log_probs_of(const Generation& result) const;

  const ServedModel& model_;
  const CompletionKind kind_;
  const int64_t number_;
  std::string name_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<std::string> stops_;
  Sampling sampling_ = {};
  int64_t max_tokens_ = 16, n_ = 1, log_probs_ = -1;  ///< log_probs_: -1 for none
  bool echo_ = false, stream_ = false, stream_usage_ = false;
  std::vector<std::unique_ptr<TextStream>> streams_;  ///< by request
  std::vector<std::optional<Generation>> results_;
  std::vector<size_t> sent_;              ///< bytes of each text that events() gave
  std::vector<char> is_begun_, is_over_;  ///< events() gave its first piece; its last
  size_t ended_ = 0;
};

}  // namespace tessera::cli
