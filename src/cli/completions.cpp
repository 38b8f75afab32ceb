#include "cli/completions.h"

#include <algorithm>
#include <ctime>

#include "base/fail.h"
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

Json error_body(const std::string& message, const char* type) {
  return {{"error", {{"message", message}, {"type", type}, {"param", nullptr}, {"code", nullptr}}}};
}

Completion::Completion(const std::string& text, const ServedModel& model, uint64_t seed)
    : model_(model) {
  static const std::string known =
      " model prompt max_tokens temperature top_p n stream logprobs echo stop seed best_of suffix "
      "user presence_penalty logit_bias top_k min_p repetition_penalty frequency_penalty ";
  const Json body = Json::parse(text, nullptr, false);
  TESSERA_REQUIRE(body.is_object(),
                  "the body is not a JSON object, as {{\"prompt\": \"Call me\"}} is");
  for (const auto& [field, value] : body.items())
    TESSERA_REQUIRE(known.find(" " + field + " ") != known.npos,
                    "'{}' is no field of a completion that this server knows", printable(field));
  const Json name = body.value("model", Json());
  TESSERA_REQUIRE(name.is_null() || name.is_string(), "'model' is {}; it is a text", shown(name));
  name_ = name.is_string() ? name.get<std::string>() : model.name;
  sampling_.seed = seed;
  read_rest(body);
  TESSERA_REQUIRE(body.contains("prompt"),
                  "'prompt' is missing: a text, a list of tokens, or a list of "
                  "these");
  read_prompts(body["prompt"]);
  require_fits();
}

void Completion::read_rest(const Json& body) {
  require_unused(body, "stream", {false});
  require_unused(body, "suffix", {""});
  require_unused(body, "best_of", {1});
  require_unused(body, "logit_bias", {Json::object()});
  require_unused(body, "presence_penalty", {0, 0.0});
  require_unused(body, "frequency_penalty", {0, 0.0});
  max_tokens_ = whole(body, "max_tokens", 16, 0, INT32_MAX);
  n_ = whole(body, "n", 1, 1, 128);
  log_probs_ = whole(body, "logprobs", -1, 0, model_.choices);
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

void Completion::require_fits() const {
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
  streams_.clear();
  for (const std::vector<int32_t>& prompt : prompts_) {
    for (int64_t i = 0; i < n_; ++i) {
      GenerationRequest r;
      r.prompt = prompt;
      r.max_tokens = max_tokens_;
      r.sampling = sampling_;
      r.sampling.stream = static_cast<uint64_t>(i);
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
  int64_t offset = 0;
  const auto add = [&](int32_t token, const TokenScore* score) {
    const std::string text = token_text(model_.vocabulary.piece_of(token));
    tokens.push_back(text);
    offsets.push_back(offset);
    offset += characters(text);
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

Json Completion::answer(const std::vector<Generation>& results, int64_t number) {
  Json choices = Json::array();
  int64_t read = 0, written = 0;
  for (size_t i = 0; i < results.size(); ++i) {
    const std::vector<int32_t>& prompt = prompts_[i / static_cast<size_t>(n_)];
    streams_[i]->finish();
    if (i % static_cast<size_t>(n_) == 0) read += std::ssize(prompt);
    written += std::ssize(results[i].tokens);
    const std::vector<int32_t>& tokens = results[i].tokens;
    const bool is_end = model_.end && !tokens.empty() && tokens.back() == *model_.end;
    choices.push_back({{"index", i},
                       {"text", streams_[i]->text()},
                       {"logprobs", log_probs_ >= 0 ? log_probs_of(results[i], prompt) : Json()},
                       {"finish_reason", streams_[i]->ended() || is_end ? "stop" : "length"}});
  }
  return {{"id", fmt::format("cmpl-{}", number)},
          {"object", "text_completion"},
          {"created", static_cast<int64_t>(std::time(nullptr))},
          {"model", name_},
          {"choices", choices},
          {"usage",
           {{"prompt_tokens", read},
            {"completion_tokens", written},
            {"total_tokens", read + written}}}};
}

}  // namespace tessera::cli
