// Text by a transformer, one token after the other, with a cache of keys and values:
//   Generator generator(options, cluster, {mesh, layout});
//   folder.load(generator.session(), options);
//   GenerationRequest request;
//   request.prompt = tokenizer.encode("Call me"), request.max_tokens = 20;
//   std::vector<Generation> texts = generator.run({request});
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/nn_transformer.h"
#include "tessera/session.h"

namespace tessera {

/// How the next token is chosen from the logits, in this order. The defaults sample from the
/// model's own distribution.
struct Sampling {
  /// Logits of tokens that the text has, the prompt's too, are divided by it if they are positive,
  /// and multiplied by it if not (Keskar et al. 2019). 1: none.
  double repetition_penalty = 1;
  /// Subtracted from the logit of a token for each time that it is in the text from place
  /// `penalties_from` on, and once if it is there at all, as OpenAI's reference says.
  double frequency_penalty = 0, presence_penalty = 0;
  int64_t penalties_from = 0;                               ///< usually the length of the prompt
  std::vector<std::pair<int32_t, double>> logit_bias = {};  ///< (token, what is added to its logit)
  double temperature = 1;  ///< of the softmax; 0: the likeliest token, the lowest of equals
  int64_t top_k = 0;       ///< only the k likeliest; 0: all
  double top_p = 1;        ///< only the fewest likeliest that together have this probability
  double min_p = 0;        ///< only those with this share of the likeliest one's probability
  /// The choice is a pure function of the logits, seed, stream and place in the text: it depends on
  /// no layout and on no other text.
  uint64_t seed = 0;
  uint64_t stream = 0;  ///< tells several texts of one prompt and seed apart
};

/// The token that is chosen from the first `vocabulary` logits for place `text.size()` of a text.
/// Throws a usage error for options out of range, if a logit is NaN or infinity, and if none is
/// finite. -infinity is that of a token that cannot come.
int32_t sample_token(const float* logits, int64_t vocabulary, const std::vector<int32_t>& text,
                     const Sampling& sampling, Loc at = Loc::current());

/// What a model says of one place of a text.
struct TokenScore {
  int32_t token = 0;
  double log_prob = 0;  ///< natural logarithm, of the model's own distribution
  std::vector<std::pair<int32_t, double>> best;  ///< the likeliest tokens, in descending order
};

/// The score of `token` by the logits of its place, a number for each token of a vocabulary, with
/// the `choices` likeliest ones.
TokenScore token_score(const float* logits, int64_t vocabulary, int32_t token, int64_t choices);

struct GenerationRequest {
  /// At least one token: the begin of the text, or what a model with an encoder answers.
  std::vector<int32_t> prompt;
  int64_t max_tokens = 16;
  Sampling sampling = {};
  /// Number of TokenScore::best. Those of new tokens are given if it is not 0.
  int64_t choices = 0;
  bool score_prompt = false;  ///< also score the tokens of the prompt behind the first
  /// Called with each new token, in every process: false ends the text behind it. Empty: true.
  std::function<bool(int32_t token)> on_token = {};
};

struct Generation {
  std::vector<int32_t> tokens;            ///< the new ones
  std::vector<TokenScore> scores;         ///< of the new ones, with GenerationRequest::choices
  std::vector<TokenScore> prompt_scores;  ///< of prompt[1], prompt[2], ...
  bool ended = false;                     ///< by on_token, before max_tokens
};

/// A text to search for: the likeliest ones, not one by chance.
struct BeamRequest {
  std::vector<int32_t> prompt;  ///< as of GenerationRequest
  int64_t max_tokens = 16;
  std::vector<int32_t> ends = {};  ///< tokens that end a text
  int64_t results = 1;             ///< texts to return, at most GeneratorOptions::beams
  /// p: the score of a text with n new tokens is the sum of their log-probabilities / n^p. Above 0
  /// it prefers long texts.
  double length_penalty = 1;
  /// Ends the search as soon as as many texts have ended as there are beams. False: if no text that
  /// goes on has now a better score than the worst of these.
  bool early_stopping = false;
};

struct BeamText {
  std::vector<int32_t> tokens;  ///< the new ones, with the one that ends the text
  double score = 0;
};

struct GeneratorOptions {
  Mesh mesh;
  Layout layout;
  int64_t rows = 1;  ///< texts that are written at a time; others wait
  /// Tokens of a prompt that a step reads; 0: 128 / rows, at least 8.
  int64_t chunk = 0;
  /// Most tokens of a text with its prompt, or with an encoder of each alone. 0: the model's
  /// length.
  int64_t context = 0;
  int64_t vocabulary = 0;  ///< only tokens below it are chosen; 0: the model's
  int64_t choices = 0;     ///< most GenerationRequest::choices; 0: no text can be scored
  int64_t beams = 0;       ///< rows that search() follows a text with, a divisor of rows; 0: none
  DType parameters = DType::float32;  ///< as Graph::store_parameters_as()
  int threads_per_rank = 0;           ///< as CompileOptions
  int64_t strict_chunks = 0;          ///< as CompileOptions
  std::string device = "cpu";
};

/// Writes texts with the model of nn::decoder(). Each row of a batch is written as if it were
/// alone, whatever the lengths of the others; when one ends, the next text that waits takes its
/// place. Every process makes the same calls.
class Generator {
 public:
  /// Compiles the model, with random parameters. Collective. Throws the errors of nn::decoder() and
  /// Session.
  Generator(const nn::TransformerOptions& model, Cluster& cluster, const GeneratorOptions& options,
            Loc at = Loc::current());
  ~Generator();
  Generator(const Generator&) = delete;

  /// To give the parameters their values. It also has the caches as state.
  Session& session();
  /// The names of the parameters, without the caches.
  std::vector<std::string> parameters() const;
  int64_t context() const;

  /// Writes all texts. Collective. Throws, before anything is written, usage errors for a prompt
  /// without tokens, with a token outside of the vocabulary, or longer with max_tokens than the
  /// context, and for options out of range.
  std::vector<Generation> run(const std::vector<GenerationRequest>& requests,
                              Loc at = Loc::current());

  /// Beam search: follows the `beams` likeliest texts of each request at a time, and returns the
  /// best of those that ended or have max_tokens, the best first (Graves 2012; ends, scores and the
  /// end of a search are those of Hugging Face transformers). Collective. Throws the usage errors
  /// of run(), and without GeneratorOptions::beams.
  std::vector<std::vector<BeamText>> search(const std::vector<BeamRequest>& requests,
                                            Loc at = Loc::current());

 private:
  friend class TextQueue;
  std::unique_ptr<class Stepper> stepper_;
};

/// Texts that come while others are written (continuous batching; Yu et al. 2022, "Orca"): a text
/// begins at the next step, if a row is free. A text is what Generator::run() makes of its request,
/// whatever is written beside it. Every process makes the same calls.
class TextQueue {
 public:
  /// Takes all rows of `generator`, which runs nothing else meanwhile and must outlive this.
  explicit TextQueue(Generator& generator);
  ~TextQueue();
  TextQueue(const TextQueue&) = delete;

  /// Adds a text and returns its number: 0, 1, 2, ... A free row goes to the group that has fewest
  /// rows; within a group texts begin in the order of add(). Throws the usage errors of
  /// Generator::run().
  int64_t add(GenerationRequest request, int64_t group = 0, Loc at = Loc::current());
  /// Ends a text, written so far or not at all. Nothing if it has ended.
  void drop(int64_t number);
  /// A step for all texts that have rows. Returns those that ended. Collective.
  std::vector<std::pair<int64_t, Generation>> step(Loc at = Loc::current());
  /// Texts that have rows, and that wait for one.
  int64_t running() const;
  int64_t waiting() const;

 private:
  class State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
