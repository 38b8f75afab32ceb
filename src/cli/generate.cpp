// Generates text with a language model. The whole window is recomputed for every token: simple and
// exact.
#include <cmath>
#include <random>

#include "base/fail.h"
#include "cli/build_model.h"
#include "cli/commands.h"
#include "cli/report.h"
#include "cli/text_tokens.h"
#include "cli/watchdog.h"
#include "tessera/checkpoint.h"

namespace tessera::cli {

namespace {

/// Samples a token from the logits at one position; temperature 0 takes the largest.
/// Only the first `count` values are tokens.
int32_t sample(const Array& logits, int64_t position, int64_t count, double temperature,
               std::mt19937_64& random) {
  const int64_t vocab = logits.sizes.back();
  std::vector<double> weights(static_cast<size_t>(count));
  double top = -1e300;
  int64_t best = 0;
  for (int64_t v = 0; v < count; ++v) {
    const double x = logits.at(position * vocab + v);
    if (x > top) top = x, best = v;
  }
  if (temperature <= 0) return static_cast<int32_t>(best);
  for (int64_t v = 0; v < count; ++v)
    weights[v] = std::exp((logits.at(position * vocab + v) - top) / temperature);
  std::discrete_distribution<int32_t> pick(weights.begin(), weights.end());
  return pick(random);
}

/// Decodes bytes as UTF-8. Incomplete characters are held back, invalid bytes become U+FFFD.
class Utf8 {
 public:
  std::string push(unsigned char byte) {
    if (wanted_ > 0 && (byte & 0xC0) == 0x80 && fits(byte)) {
      held_ += static_cast<char>(byte);
      return --wanted_ == 0 ? std::exchange(held_, "") : "";
    }
    std::string text = flush();
    wanted_ = byte < 0x80                   ? 0
              : byte >= 0xC2 && byte < 0xE0 ? 1
              : byte >= 0xE0 && byte < 0xF0 ? 2
              : byte >= 0xF0 && byte < 0xF5 ? 3
                                            : -1;
    if (wanted_ == 0) return text + static_cast<char>(byte);
    if (wanted_ < 0) {
      wanted_ = 0;
      return text + kReplacement;
    }
    held_ = static_cast<char>(byte);
    return text;
  }
  std::string flush() {
    wanted_ = 0;
    return held_.empty() ? "" : (held_.clear(), kReplacement);
  }

 private:
  static constexpr const char* kReplacement = "\xEF\xBF\xBD";
  /// The second byte excludes overlong forms, surrogates and code points above U+10FFFF.
  bool fits(unsigned char byte) const {
    if (held_.size() != 1) return true;
    const auto first = static_cast<unsigned char>(held_[0]);
    if (first == 0xE0) return byte >= 0xA0;
    if (first == 0xED) return byte < 0xA0;
    if (first == 0xF0) return byte >= 0x90;
    return first != 0xF4 || byte < 0x90;
  }
  std::string held_;
  int wanted_ = 0;
};

}  // namespace

namespace {

constexpr int64_t kBytes = 256;

/// A language model's tokens and logits, with the dims that they have.
struct Language {
  Tensor tokens, logits;
  std::string position;
  int64_t length, vocabulary;
};

/// Throws a usage error unless the model is a language model as nn::Model::tokens says.
Language language_of(const std::string& name, const nn::Model& model) {
  require(!model.tokens.empty() && !model.logits.empty(),
          "generate needs a language model, and '{}' is not one: its build sets no nn::Model::{}",
          name, model.tokens.empty() ? "tokens" : "logits");
  const Shape &tokens = model.tokens.shape(), &logits = model.logits.shape();
  const bool fits = model.tokens.dtype() == DType::int32 && tokens.rank() == 2 &&
                    logits.rank() == 3 && tokens[0].name == "batch" && logits[0] == tokens[0] &&
                    logits[1] == tokens[1];
  require(fits,
          "generate: the tokens of model '{}' are {} {} and its logits {}; they must be int32 "
          "[batch, p] and [batch, p, v], in this order",
          name, to_string(model.tokens.dtype()), tokens.to_string(), logits.to_string());
  return {model.tokens, model.logits, tokens[1].name, tokens[1].size, logits[2].size};
}

/// Samples the next token, below `count`, from the last window of `tokens`.
int32_t next_token(Session& session, const Language& model, const Arguments& args, int64_t count,
                   const std::vector<int32_t>& tokens, std::mt19937_64& random) {
  const int64_t used = std::min<int64_t>(model.length, std::ssize(tokens));
  Array window(DType::int32, {"batch", model.position}, {1, model.length});
  for (int64_t p = 0; p < used; ++p)
    window.data<int32_t>()[p] = tokens[tokens.size() - static_cast<size_t>(used - p)];
  session.feed(model.tokens.name(), window);
  session.run("logits");
  const Array logits = session.fetch(model.logits.name());
  return sample(logits, used - 1, count, args.temperature, random);
}

}  // namespace

int generate(const Arguments& args, const std::vector<ModelSpec>& models) {
  require_place_for(args.json);
  Job job = resolve(args, models, false);
  require(!args.checkpoint.empty() || job.folder,
          "generate needs --checkpoint DIR; only a folder with weights goes without");
  std::vector<Checkpoint> all;
  if (!args.checkpoint.empty()) {
    all = checkpoints_of(args);
    take_stored_model(job, all[0]);
  }
  Cluster cluster = make_cluster(job, args);
  const Watchdog watchdog(cluster, args.timeout);
  Graph g;
  store_parameters(job.config, g);
  const Language model = language_of(job.spec->name, build_model(job, g, 1, false));
  Arguments tokenized = args;  // a folder has its own tokenizer
  if (args.tokenizer.empty() && job.folder && model.vocabulary > kBytes)
    tokenized.tokenizer = args.model;
  const TextTokens vocabulary(tokenized, model.vocabulary);
  std::vector<int32_t> tokens = vocabulary.of_prompt(args.prompt);
  CompileOptions options{
      job.mesh, job.layout, {{"logits", {model.logits}, false}}, 0, threads_of(job)};
  options.device = job.device;
  Session session(g, cluster, options);
  Checkpoint loaded{args.model, 0, {}, ""};
  if (all.empty()) {
    start_parameters(job, session);
  } else {
    loaded = load_first(session, all);
  }
  Utf8 utf8;
  std::string text;
  auto show = [&](const std::string& more) {
    text += more;
    if (!cluster.is_root()) return;
    std::fwrite(more.data(), 1, more.size(), stdout);
    std::fflush(stdout);
  };
  size_t shown = args.prompt.empty() ? vocabulary.bytes_of(tokens).size() : 0;  // bytes
  const auto show_new = [&] {
    const std::string bytes = vocabulary.bytes_of(tokens);
    for (; shown < bytes.size(); ++shown) show(utf8.push(static_cast<unsigned char>(bytes[shown])));
  };
  show_new();
  std::mt19937_64 random(static_cast<uint64_t>(job.config.integer("train.seed")));
  for (int64_t i = 0; i < args.tokens; ++i) {
    tokens.push_back(next_token(session, model, args, vocabulary.count(), tokens, random));
    if (vocabulary.ends_text(tokens.back())) break;
    show_new();
  }
  show(utf8.flush());
  if (cluster.is_root()) {
    std::fputc('\n', stdout);
    write_report(args.json, {{"checkpoint", loaded.path},
                             {"step", loaded.step},
                             {"prompt", args.prompt},
                             {"tokens", args.tokens},
                             {"text", text}});
  }
  return 0;
}

}  // namespace tessera::cli
