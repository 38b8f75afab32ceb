#include "cli/completions.h"

#include <algorithm>
#include <charconv>
#include <ctime>

#include "base/fail.h"
#include "base/json.h"
#include "base/printable.h"

namespace tessera::cli {

namespace {

using Json = nlohmann::json;

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 40) text = text.substr(0, 40) + "...";
  return text;
}

/// A field that is a number from `least` to `most`, or `usual` if it is absent or null.
double number(const Json& body, const char* field, double usual, double least, double most) {
  const Json value = body.value(field, Json());
  if (value.is_null()) return usual;
  TESSERA_REQUIRE(value.is_number() && value.get<double>() >= least && value.get<double>() <= most,
                  "'{}' is {}; it is a number from {} to {}", field, shown(value), least, most);
  return value.get<double>();
}

int64_t whole(const Json& body, const char* field, int64_t usual, int64_t least, int64_t most) {
  const Json value = body.value(field, Json());
  if (value.is_null()) return usual;
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{INT64_MAX});
  TESSERA_REQUIRE(fits && value.get<int64_t>() >= least && value.get<int64_t>() <= most,
                  "'{}' is {}; it is a whole number from {} to {}", field, shown(value), least,
                  most);
  return value.get<int64_t>();
}

bool flag(const Json& body, const char* field) {
  const Json value = body.value(field, Json());
  TESSERA_REQUIRE(value.is_null() || value.is_boolean(), "'{}' is {}; it is true or false", field,
                  shown(value));
  return value.is_boolean() && value.get<bool>();
}

/// Throws unless the field is absent, null, or says that a feature is not wanted.
void require_unused(const Json& body, const char* field, const std::vector<Json>& unused) {
  const Json value = body.value(field, Json());
  TESSERA_REQUIRE(value.is_null() || std::find(unused.begin(), unused.end(), value) != unused.end(),
                  "'{}' is {}, and this server does not have it; leave it out", field,
                  shown(value));
}

constexpr int64_t kMostRequests = 2048, kMostStops = 16;

/// The number of code points.
int64_t characters(const std::string& text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

/// A token's text, or its bytes if they are no text.
std::string token_text(const std::string& piece) {
  Utf8 utf8;
  std::string text, hex = "bytes:";
  for (const char c : piece) {
    text += utf8.push(static_cast<unsigned char>(c));
    hex += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  }
  text += utf8.flush();
  return text == piece ? text : hex;
}

}  // namespace

Completion::Completion(const std::string& text, const ServedModel& model, int64_t number,
                       CompletionKind kind)
    : model_(model), kind_(kind), number_(number) {
  // Of OpenAI's reference, and what vLLM's server has besides.
  static const std::string
      both =
          " model max_tokens temperature top_p n stream stream_options stop seed user "
          "presence_penalty frequency_penalty logit_bias logprobs top_k min_p repetition_penalty ",
      of_text = " prompt echo best_of suffix ",
      of_chat =
          " messages max_completion_tokens top_logprobs response_format tools tool_choice "
          "parallel_tool_calls functions function_call modalities audio prediction store metadata "
          "service_tier reasoning_effort verbosity web_search_options prompt_cache_key "
          "prompt_cache_retention safety_identifier ";
  const Json body = parse_json(text);
  TESSERA_REQUIRE(body.is_object(), "the body is not a JSON object, as {} is",
                  is_chat() ? R"({"messages": [{"role": "user", "content": "Call me"}]})"
                            : R"({"prompt": "Call me"})");
  for (const auto& [field, value] : body.items()) {
    const std::string word = " " + field + " ";
    TESSERA_REQUIRE(both.find(word) != both.npos ||
                        (is_chat() ? of_chat : of_text).find(word) != std::string::npos,
                    "'{}' is no field of a {}completion that this server knows", printable(field),
                    is_chat() ? "chat " : "");
  }
  const Json name = body.value("model", Json());
  TESSERA_REQUIRE(name.is_null() || name.is_string(), "'model' is {}; it is a text", shown(name));
  name_ = name.is_string() ? name.get<std::string>() : model.name;
  sampling_.seed = static_cast<uint64_t>(number);
  read_rest(body);
  const char* const what = is_chat() ? "messages" : "prompt";
  TESSERA_REQUIRE(body.contains(what), "'{}' is missing: {}", what,
                  is_chat() ? "a list of {\"role\": ..., \"content\": ...}"
                            : "a text, a list of tokens, or a list of these");
  is_chat() ? read_messages(body[what]) : read_prompts(body[what]);
  require_fits();
}

void Completion::read_rest(const Json& body) {
  require_unused(body, "suffix", {""});
  require_unused(body, "best_of", {1});
  require_unused(body, "response_format", {Json{{"type", "text"}}});
  require_unused(body, "modalities", {Json{"text"}});
  require_unused(body, "tool_choice", {"none", "auto"});
  for (const char* field : {"tools", "functions"}) require_unused(body, field, {Json::array()});
  for (const char* field : {"function_call", "audio", "prediction", "web_search_options"})
    require_unused(body, field, {});
  stream_ = flag(body, "stream");
  const Json options = body.value("stream_options", Json());
  TESSERA_REQUIRE(options.is_null() || (options.is_object() && stream_),
                  "'stream_options' is {}; it is an object, and needs stream: true",
                  shown(options));
  for (const auto& [field, value] : options.items())
    TESSERA_REQUIRE(field == "include_usage" || field == "include_obfuscation",
                    "'stream_options' has '{}', which this server does not know", printable(field));
  stream_usage_ = options.is_object() && flag(options, "include_usage");
  const char* const newer = "max_completion_tokens";
  max_tokens_ = whole(body, "max_tokens", is_chat() ? -1 : 16, 0, INT32_MAX);
  max_tokens_ = whole(body, newer, max_tokens_, 0, INT32_MAX);
  n_ = whole(body, "n", 1, 1, 128);
  if (is_chat()) {
    log_probs_ = flag(body, "logprobs") ? 0 : -1;
    TESSERA_REQUIRE(log_probs_ == 0 || body.value("top_logprobs", Json()).is_null(),
                    "'top_logprobs' is {} without logprobs: true",
                    shown(body.value("top_logprobs", Json())));
    log_probs_ = whole(body, "top_logprobs", log_probs_, 0, model_.choices);
  } else {
    log_probs_ = whole(body, "logprobs", -1, 0, model_.choices);
  }
  echo_ = flag(body, "echo");
  TESSERA_REQUIRE(
      !model_.end || (!echo_ && log_probs_ < 0),
      "'{}' is given, and an encoder reads the prompts of this model: its answers do not have "
      "them, and their tokens have no scores; leave it out",
      echo_ ? "echo" : "logprobs");
  sampling_.temperature = number(body, "temperature", 1, 0, 100);
  sampling_.top_p = number(body, "top_p", 1, 1e-9, 1);
  sampling_.top_k = std::max<int64_t>(0, whole(body, "top_k", 0, -1, INT32_MAX));
  sampling_.min_p = number(body, "min_p", 0, 0, 1);
  sampling_.frequency_penalty = number(body, "frequency_penalty", 0, -2, 2);
  sampling_.presence_penalty = number(body, "presence_penalty", 0, -2, 2);
  read_biases(body.value("logit_bias", Json()));
  sampling_.repetition_penalty = number(body, "repetition_penalty", 1, 1e-3, 1000);
  sampling_.seed = static_cast<uint64_t>(
      whole(body, "seed", static_cast<int64_t>(sampling_.seed), INT64_MIN, INT64_MAX));
  const Json stop = body.value("stop", Json());
  for (const Json& one : stop.is_array() ? stop : stop.is_null() ? Json::array() : Json{stop}) {
    TESSERA_REQUIRE(one.is_string() && !one.get<std::string>().empty(),
                    "'stop' is {}; it is a text that is not empty, or a list of these",
                    shown(stop));
    stops_.push_back(one.get<std::string>());
  }
  TESSERA_REQUIRE(std::ssize(stops_) <= kMostStops, "'stop' has {} texts; {} are allowed",
                  stops_.size(), kMostStops);
}

void Completion::read_biases(const Json& biases) {
  TESSERA_REQUIRE(biases.is_null() || biases.is_object(),
                  "'logit_bias' is {}; it is an object, as {{\"50\": -100}}", shown(biases));
  for (const auto& [name, bias] : biases.items()) {
    int32_t token = -1;
    const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), token);
    TESSERA_REQUIRE(
        error == std::errc() && *end == 0 && token >= 0 && token < model_.model_vocabulary,
        "'logit_bias' has '{}', which is not one of the {} tokens of the model", printable(name),
        model_.model_vocabulary);
    sampling_.logit_bias.emplace_back(token, number(biases, name.c_str(), 0, -100, 100));
  }
}

void Completion::read_prompts(const Json& prompt) {
  const auto is_tokens = [](const Json& list) {
    return list.is_array() && !list.empty() &&
           std::all_of(list.begin(), list.end(), [](const Json& x) { return x.is_number(); });
  };
  const std::vector<Json> all = prompt.is_array() && !is_tokens(prompt)
                                    ? prompt.get<std::vector<Json>>()
                                    : std::vector<Json>{prompt};
  TESSERA_REQUIRE(!all.empty(), "'prompt' is an empty list");
  TESSERA_REQUIRE(std::ssize(all) * n_ <= kMostRequests,
                  "{} prompts and n = {}; {} texts are allowed", all.size(), n_, kMostRequests);
  for (const Json& one : all) {
    if (one.is_string()) {
      prompts_.push_back(model_.vocabulary.of_prompt(one.get<std::string>()));
      continue;
    }
    TESSERA_REQUIRE(is_tokens(one),
                    "'prompt' is {}; it is a text, a list of tokens, or a list of these",
                    shown(prompt));
    std::vector<int32_t> tokens;
    for (const Json& token : one) {
      TESSERA_REQUIRE(token.is_number_integer() && token >= 0 && token < model_.model_vocabulary,
                      "the token {} of a prompt is not one of the {} of the model", shown(token),
                      model_.model_vocabulary);
      tokens.push_back(token.get<int32_t>());
    }
    prompts_.push_back(std::move(tokens));
  }
  for (std::vector<int32_t>& tokens : prompts_) {
    if (model_.end && (tokens.empty() || tokens.back() != *model_.end))
      tokens.push_back(*model_.end);
  }
}

void Completion::read_messages(const Json& messages) {
  TESSERA_REQUIRE(model_.chat != nullptr, "this model answers no conversations: {}",
                  model_.why_no_chat);
  TESSERA_REQUIRE(messages.is_array() && !messages.empty(),
                  "'messages' is {}; it is a list with at least one {{\"role\": ..., \"content\": "
                  "...}}",
                  shown(messages));
  std::vector<ChatTemplate::Message> all;
  for (const Json& message : messages) {
    const Json role = message.is_object() ? message.value("role", Json()) : Json();
    TESSERA_REQUIRE(role.is_string(), "a message is {}; it is {{\"role\": ..., \"content\": ...}}",
                    shown(message));
    for (const auto& [field, value] : message.items())
      TESSERA_REQUIRE(field == "role" || field == "content" || value.is_null(),
                      "a message has '{}', which this server does not know", printable(field));
    std::string text;
    const Json content = message.value("content", Json());
    for (const Json& part : content.is_array() ? content : Json{content}) {
      const Json own = part.is_object() && part.value("type", Json()) == "text"
                           ? part.value("text", Json())
                           : part;
      TESSERA_REQUIRE(own.is_string(),
                      "'content' is {}; it is a text, or a list of {{\"type\": \"text\", \"text\": "
                      "...}}",
                      shown(content));
      text += own.get<std::string>();
    }
    all.push_back({role.get<std::string>(), text});
  }
  prompts_.push_back(model_.vocabulary.of_conversation(model_.chat->render(all, true)));
}

void Completion::require_fits() {
  if (max_tokens_ < 0)  // of a conversation: as many as there is room for
    max_tokens_ = std::max<int64_t>(0, model_.context - std::ssize(prompts_[0]));
  int64_t all = 0;
  for (const auto& prompt : prompts_) {
    const int64_t size = std::ssize(prompt);
    TESSERA_REQUIRE(
        !model_.end || std::max(size, max_tokens_ + 1) <= model_.context,
        "the prompt has {} tokens, and max_tokens is {}; the prompt, or max_tokens and the token "
        "that starts an answer, are more than the model's length of {}",
        size, max_tokens_, model_.context);
    TESSERA_REQUIRE(
        model_.end || size + max_tokens_ <= model_.context,
        "the prompt has {} tokens, and max_tokens is {}; together they are more than the "
        "model's length of {}",
        size, max_tokens_, model_.context);
    all += n_ * (size + max_tokens_);
  }
  TESSERA_REQUIRE(
      all <= model_.most_tokens,
      "the request has {} tokens, prompts and new ones; this server takes {} (--most-tokens)", all,
      model_.most_tokens);
}

std::vector<GenerationRequest> Completion::requests(const std::atomic<bool>& stopping) {
  std::vector<GenerationRequest> all;
  results_.resize(prompts_.size() * static_cast<size_t>(n_));
  sent_.resize(results_.size());
  is_begun_.resize(results_.size());
  is_over_.resize(results_.size());
  for (const std::vector<int32_t>& prompt : prompts_) {
    for (int64_t i = 0; i < n_; ++i) {
      GenerationRequest r;
      r.prompt = prompt;
      r.max_tokens = max_tokens_;
      r.sampling = sampling_;
      r.sampling.stream = static_cast<uint64_t>(i);
      r.sampling.penalties_from = std::ssize(prompt);
      // `logprobs: 0` asks for those of the tokens alone.
      if (log_probs_ >= 0) r.choices = std::max<int64_t>(1, log_probs_);
      r.score_prompt = log_probs_ >= 0 && echo_;
      streams_.push_back(std::make_unique<TextStream>(
          model_.vocabulary, model_.end ? std::vector<int32_t>() : prompt, echo_, stops_));
      r.on_token = [stream = streams_.back().get(), end = model_.end, &stopping](int32_t token) {
        return token != end && stream->push(token) && !stopping;
      };
      all.push_back(std::move(r));
    }
  }
  return all;
}

Json Completion::log_probs_of(const Generation& result, const std::vector<int32_t>& prompt) const {
  std::vector<TokenScore> scores;
  Json tokens = Json::array(), log_probs = Json::array(), best = Json::array(),
       offsets = Json::array();
  Utf8 utf8;
  std::string shown;  // the text so far, without a character that is not complete
  const auto add = [&](int32_t token, const TokenScore* score) {
    const std::string piece = model_.vocabulary.piece_of(token), text = token_text(piece);
    tokens.push_back(text);
    offsets.push_back(characters(shown));
    for (const char c : piece) shown += utf8.push(static_cast<unsigned char>(c));
    if (!score) {
      log_probs.push_back(nullptr);
      best.push_back(nullptr);
      return;
    }
    log_probs.push_back(score->log_prob);
    Json top = Json::object();
    for (int64_t k = 0; k < log_probs_; ++k) {
      const auto& [other, log_prob] = score->best[static_cast<size_t>(k)];
      const std::string name = token_text(model_.vocabulary.piece_of(other));
      if (!top.contains(name)) top[name] = log_prob;
    }
    if (!top.contains(text)) top[text] = score->log_prob;
    best.push_back(top);
  };
  if (echo_) {
    add(prompt[0], nullptr);
    for (const TokenScore& s : result.prompt_scores) add(s.token, &s);
  }
  for (const TokenScore& s : result.scores) add(s.token, &s);
  return {{"tokens", tokens},
          {"token_logprobs", log_probs},
          {"top_logprobs", best},
          {"text_offset", offsets}};
}

Json Completion::chat_log_probs_of(const Generation& result) const {
  const auto entry = [&](int32_t token, double log_prob) {
    const std::string piece = model_.vocabulary.piece_of(token);
    Json bytes = Json::array();
    for (const char c : piece) bytes.push_back(static_cast<unsigned char>(c));
    return Json{{"token", token_text(piece)}, {"logprob", log_prob}, {"bytes", bytes}};
  };
  Json content = Json::array();
  for (const TokenScore& score : result.scores) {
    Json one = entry(score.token, score.log_prob), top = Json::array();
    for (int64_t k = 0; k < log_probs_; ++k)
      top.push_back(entry(score.best[static_cast<size_t>(k)].first,
                          score.best[static_cast<size_t>(k)].second));
    one["top_logprobs"] = top;
    content.push_back(one);
  }
  return {{"content", content}};
}

void Completion::end(size_t i, Generation result) {
  streams_[i]->finish();
  results_[i] = std::move(result);
  ++ended_;
}

int64_t Completion::tokens_read() const {
  int64_t all = 0;
  for (const auto& prompt : prompts_) all += std::ssize(prompt);
  return all;
}

int64_t Completion::tokens_written() const {
  int64_t all = 0;
  for (const auto& result : results_) all += result ? std::ssize(result->tokens) : 0;
  return all;
}

Json Completion::usage() const {
  return {{"prompt_tokens", tokens_read()},
          {"completion_tokens", tokens_written()},
          {"total_tokens", tokens_read() + tokens_written()}};
}

Json Completion::head(const char* object) const {
  return {{"id", fmt::format("{}-{}", is_chat() ? "chatcmpl" : "cmpl", number_)},
          {"object", object},
          {"created", static_cast<int64_t>(std::time(nullptr))},
          {"model", name_}};
}

const char* Completion::finish_reason(size_t i) const {
  const std::vector<int32_t>& tokens = results_[i]->tokens;
  const bool is_end = model_.end && !tokens.empty() && tokens.back() == *model_.end;
  return streams_[i]->ended() || is_end ? "stop" : "length";
}

Json Completion::answer() const {
  Json choices = Json::array();
  for (size_t i = 0; i < results_.size(); ++i) {
    const Generation& result = *results_[i];
    Json choice = {{"index", i}, {"logprobs", nullptr}, {"finish_reason", finish_reason(i)}};
    if (is_chat()) {
      choice["message"] = {
          {"role", "assistant"}, {"content", streams_[i]->text()}, {"refusal", nullptr}};
      if (log_probs_ >= 0) choice["logprobs"] = chat_log_probs_of(result);
    } else {
      choice["text"] = streams_[i]->text();
      if (log_probs_ >= 0)
        choice["logprobs"] = log_probs_of(result, prompts_[i / static_cast<size_t>(n_)]);
    }
    choices.push_back(choice);
  }
  Json body = head(is_chat() ? "chat.completion" : "text_completion");
  body["choices"] = choices;
  body["usage"] = usage();
  return body;
}

std::string Completion::events() {
  std::string all;
  const auto send = [&](const Json& choices) {
    Json body = head(is_chat() ? "chat.completion.chunk" : "text_completion");
    body["choices"] = choices;
    if (stream_usage_) body["usage"] = choices.empty() ? usage() : Json();
    all += "data: " + body.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n\n";
  };
  for (size_t i = 0; i < streams_.size(); ++i) {
    if (is_over_[i]) continue;
    const std::string piece = streams_[i]->text().substr(sent_[i]);
    sent_[i] += piece.size();
    const bool ends = results_[i].has_value();
    if (piece.empty() && !ends && (is_begun_[i] || !is_chat())) continue;
    Json choice = {{"index", i},
                   {"logprobs", nullptr},
                   {"finish_reason", ends ? Json(finish_reason(i)) : Json()}};
    if (is_chat()) {
      choice["delta"] = {{"content", piece}};
      if (!is_begun_[i]) choice["delta"]["role"] = "assistant";
    } else {
      choice["text"] = piece;
    }
    if (ends && log_probs_ >= 0)
      choice["logprobs"] = is_chat()
                               ? chat_log_probs_of(*results_[i])
                               : log_probs_of(*results_[i], prompts_[i / static_cast<size_t>(n_)]);
    send(Json::array({choice}));
    is_begun_[i] = 1;
    is_over_[i] = ends;
  }
  if (!is_done()) return all;
  if (stream_usage_) send(Json::array());
  return all + "data: [DONE]\n\n";
}

}  // namespace tessera::cli
