// Writes texts with a language model: with a cache of keys and values, or by reading the last
// window of each text again for every token, which is simple, and for any model.
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "base/fail.h"
#include "base/files.h"
#include "base/printable.h"
#include "cli/build_model.h"
#include "cli/report.h"
#include "cli/text_stream.h"
#include "cli/watchdog.h"
#include "cli/writing.h"

namespace tessera::cli {

namespace {

constexpr int64_t kUsualTokens = 200;

struct GenerateFlags : WriterFlags, SamplingFlags, JsonFlag {
  std::vector<std::string> prompts, stops;
  int64_t samples = 1;  ///< texts of a prompt
  bool no_cache = false, check = false;
  int64_t beams = 0;  ///< 0: tokens are chosen one by one
  double length_penalty = 1;
  bool early_stopping = false;
  void declare(FlagTable& table) {
    WriterFlags::declare(table);
    table.add({{"--prompt", Each{&prompts}, kAgree,
                "Text that the model continues. Several are continued together.", any_text()}});
    SamplingFlags::declare(table, kUsualTokens);
    table.add(
        {{"--stop TEXT", Each{&stops}, kAgree,
          "Text at which to stop, and which is left out. May be given several times."},
         {"--samples", &samples, kAgree, "Number of texts for each prompt (1).",
          whole_number(1, kMostRows)},
         {"--no-cache", &no_cache, kAgree,
          "Keeps no keys and values: reads the whole text again for every token, as texts that "
          "outgrow the model's length always are."},
         {"--check", &check, kAgree,
          "Reads each text once more as training does, and compares the log-probabilities of its "
          "tokens. Under train.numerics=strict they are equal bit for bit; the exit status is 1 "
          "if they are not."},
         {"--beams", &beams, kAgree,
          "Writes the likeliest text that a beam search with so many beams finds, instead of "
          "choosing tokens one by one; with --samples the best ones.",
          whole_number(1, kMostRows)},
         {"--length-penalty", &length_penalty, kAgree,
          "With --beams: the score of a text of n tokens is its log-probability / n^X (1). Above 0 "
          "it prefers long texts."},
         {"--early-stopping", &early_stopping, kAgree,
          "With --beams: ends the search once as many texts have ended as there are beams."}});
    JsonFlag::declare(table);
  }
};

/// A language model's tokens and logits, with the dims that they have.
struct Language {
  Tensor tokens, logits;
  std::string position;
  int64_t length, vocabulary;
};

/// Throws a usage error unless the model is a language model as nn::Model::tokens says.
Language language_of(const std::string& name, const nn::Model& model) {
  TESSERA_REQUIRE(
      !model.tokens.empty() && !model.logits.empty(),
      "generate needs a language model, and '{}' is not one: its build sets no nn::Model::{}", name,
      model.tokens.empty() ? "tokens" : "logits");
  const Shape &tokens = model.tokens.shape(), &logits = model.logits.shape();
  const bool fits = model.tokens.dtype() == DType::int32 && tokens.rank() == 2 &&
                    logits.rank() == 3 && tokens[0].name == "batch" && logits[0] == tokens[0] &&
                    logits[1] == tokens[1];
  TESSERA_REQUIRE(
      fits,
      "generate: the tokens of model '{}' are {} {} and its logits {}; they must be int32 "
      "[batch, p] and [batch, p, v], in this order",
      name, to_string(model.tokens.dtype()), tokens.to_string(), logits.to_string());
  return {model.tokens, model.logits, tokens[1].name, tokens[1].size, logits[2].size};
}

/// A text and what is known of it.
struct Text {
  const std::string* prompt;
  GenerationRequest request;
  std::unique_ptr<TextStream> stream;
};

/// The model, if it is nn::transformer().
struct Transformer {
  int64_t vocabulary = 0;
  int64_t length = 0;          ///< that it writes with a cache, at most
  std::optional<int32_t> end;  ///< ends prompts and texts if an encoder reads the prompts
};

Transformer transformer_of(const GenerateFlags& args, const Job& job) {
  const nn::TransformerOptions o = job.spec->transformer(job.config);
  TESSERA_REQUIRE(
      o.causal,
      "generate writes texts, and '{}' is an encoder, which fills in tokens of them; train or eval "
      "takes it",
      job.spec->name);
  const std::optional<int32_t> end = end_of_prompts(o);
  if (!end) return {o.vocab, args.no_cache ? 0 : o.length, {}};
  TESSERA_REQUIRE(!args.no_cache,
                  "--no-cache reads the whole text for every token, and '{}' has an "
                  "encoder, whose result is kept; leave it out",
                  job.spec->name);
  return {o.vocab, INT64_MAX, end};
}

/// Reads the last window of a text for each token.
class Recomputing {
 public:
  Recomputing(const Job& job, Cluster& cluster) : job_(job), cluster_(cluster) {
    store_parameters(job.config, graph_);
    model_ = language_of(job.spec->name, build_model(job, graph_, 1, false));
  }
  int64_t vocabulary() const { return model_.vocabulary; }

  Checkpoint load(const std::string& model, const std::vector<Checkpoint>& checkpoints) {
    CompileOptions options{
        job_.mesh, job_.layout, {{"logits", {model_.logits}, false}}, 0, threads_of(job_)};
    options.device = job_.device;
    options.strict_chunks = strict_chunks_of(job_.config);
    session_ = std::make_unique<Session>(graph_, cluster_, options);
    if (!checkpoints.empty()) return load_first(*session_, checkpoints);
    start_parameters(job_, *session_);
    return {model, 0, {}, ""};
  }

  /// Only tokens below `count` are chosen.
  void write(const GenerationRequest& request, int64_t count) {
    std::vector<int32_t> tokens = request.prompt;
    for (int64_t i = 0; i < request.max_tokens; ++i) {
      tokens.push_back(next(tokens, count, request.sampling));
      if (!request.on_token(tokens.back())) break;
    }
  }

  /// The log-probabilities of `tokens`, which follow the prompt.
  std::vector<double> log_probs(const std::vector<int32_t>& prompt,
                                const std::vector<int32_t>& tokens) {
    std::vector<int32_t> all = prompt;
    all.insert(all.end(), tokens.begin(), tokens.end());
    const std::vector<float> logits = logits_of(all.data(), std::ssize(all));
    std::vector<double> result;
    for (size_t i = 0; i < tokens.size(); ++i) {
      const float* at =
          logits.data() + (prompt.size() - 1 + i) * static_cast<size_t>(model_.vocabulary);
      result.push_back(token_score(at, model_.vocabulary, tokens[i], 0).log_prob);
    }
    return result;
  }

 private:
  /// [length, vocabulary], of `used` tokens and zeros behind them.
  std::vector<float> logits_of(const int32_t* tokens, int64_t used) {
    Array window(DType::int32, {"batch", model_.position}, {1, model_.length});
    std::fill_n(std::copy_n(tokens, used, window.data<int32_t>()), model_.length - used, 0);
    session_->feed(model_.tokens.name(), window);
    session_->run("logits");
    const Array logits = session_->fetch(model_.logits.name());
    std::vector<float> result;
    for (int64_t i = 0; i < logits.elements(); ++i)
      result.push_back(static_cast<float>(logits.at(i)));
    return result;
  }

  int32_t next(const std::vector<int32_t>& tokens, int64_t count, const Sampling& sampling) {
    const int64_t used = std::min<int64_t>(model_.length, std::ssize(tokens));
    const std::vector<float> logits = logits_of(&*tokens.end() - used, used);
    return sample_token(logits.data() + (used - 1) * model_.vocabulary, count, tokens, sampling);
  }

  const Job& job_;
  Cluster& cluster_;
  Graph graph_;
  Language model_;
  std::unique_ptr<Session> session_;
};

std::vector<Text> texts_of(const GenerateFlags& args, const Job& job, const TextTokens& vocabulary,
                           std::optional<int32_t> end) {
  static const std::vector<std::string> kNone = {""};
  std::vector<Text> texts;
  for (const std::string& prompt : args.prompts.empty() ? kNone : args.prompts) {
    for (int64_t i = 0; i < args.samples; ++i) {
      Text text{&prompt, {}, nullptr};
      text.request.prompt = vocabulary.of_prompt(prompt);
      if (end) text.request.prompt.push_back(*end);
      text.request.max_tokens = args.tokens.value_or(kUsualTokens);
      text.request.sampling = args.sampling;
      text.request.sampling.seed = static_cast<uint64_t>(job.config.integer("train.seed"));
      text.request.sampling.stream = static_cast<uint64_t>(i);
      // What an encoder reads is no part of the text.
      text.stream = std::make_unique<TextStream>(vocabulary,
                                                 end ? std::vector<int32_t>() : text.request.prompt,
                                                 !end && !prompt.empty(), args.stops);
      texts.push_back(std::move(text));
    }
  }
  return texts;
}

/// The most tokens of a text with its prompt.
int64_t longest(const std::vector<Text>& texts) {
  int64_t most = 0;
  for (const Text& text : texts)
    most = std::max(most, std::ssize(text.request.prompt) + text.request.max_tokens);
  return most;
}

/// Prints texts in their order: the first that is not complete as it grows, others when their turn
/// comes.
class Printer {
 public:
  Printer(const std::vector<Text>& texts, bool active) : texts_(texts), active_(active) {}
  void show(size_t text) {
    if (text == current_) show();
  }
  void complete(size_t text) {
    done_.resize(texts_.size());
    texts_[text].stream->finish();
    done_[text] = true;
    for (; current_ < texts_.size() && done_[current_]; ++current_, shown_ = 0) {
      show();
      if (active_) std::fputc('\n', stdout);
    }
    if (current_ < texts_.size()) show();
  }

 private:
  void show() {
    const std::string& whole = texts_[current_].stream->text();
    if (active_) {
      // A file gets the text as it is; a terminal must not be moved or renamed by it.
      const std::string piece = terminal_ ? printable(whole.substr(shown_)) : whole.substr(shown_);
      std::fwrite(piece.data(), 1, piece.size(), stdout);
      std::fflush(stdout);
    }
    shown_ = whole.size();
  }
  const std::vector<Text>& texts_;
  const bool active_, terminal_ = isatty(STDOUT_FILENO) != 0;
  std::vector<bool> done_;
  size_t current_ = 0, shown_ = 0;
};

/// `written` tokens in `seconds`, without what comes before the first step.
nlohmann::json report_of(const Checkpoint& loaded, const std::vector<Text>& texts, int64_t written,
                         double seconds) {
  nlohmann::json all = nlohmann::json::array();
  for (const Text& text : texts)
    all.push_back({{"prompt", *text.prompt}, {"text", text.stream->text()}});
  return {{"checkpoint", loaded.path},
          {"step", loaded.step},
          {"prompt", *texts[0].prompt},
          {"tokens", texts[0].request.max_tokens},
          {"text", texts[0].stream->text()},
          {"texts", all},
          {"seconds", seconds},
          {"written", written}};
}

/// What --check found.
struct Checked {
  int64_t tokens = 0, different = 0;
  double most = 0;  ///< difference of two log-probabilities

  std::string text(bool is_strict) const {
    if (different == 0)
      return fmt::format(
          "check   {} log-probabilities are those of the training forward, bit for bit", tokens);
    return fmt::format(
        "check   {} of {} log-probabilities differ from those of the training forward, by up to "
        "{:.2g}{}",
        different, tokens, most, is_strict ? "" : "; with --set numerics=strict none does");
  }
};

Checked check(const std::vector<Text>& texts, const std::vector<Generation>& written,
              Recomputing& training) {
  Checked result;
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::vector<double> expected =
        training.log_probs(texts[i].request.prompt, written[i].tokens);
    for (size_t k = 0; k < expected.size(); ++k) {
      const double by = std::abs(expected[k] - written[i].scores[k].log_prob);
      ++result.tokens;
      result.different += by == 0 ? 0 : 1;
      result.most = std::max(result.most, by);
    }
  }
  return result;
}

void require_checked(const GenerateFlags& args, const Transformer& model, int64_t context) {
  TESSERA_REQUIRE(
      !args.check || (args.beams == 0 && !model.end && context <= model.length),
      "--check compares texts that are written with a cache, token by token, with the training "
      "forward: leave out --beams and --no-cache, take a decoder, and at most its length of {} "
      "tokens",
      model.length);
}

void require_beams(const GenerateFlags& args) {
  const Sampling& s = args.sampling;
  const bool samples = s.top_k != 0 || s.top_p != 1 || s.min_p != 0 || s.repetition_penalty != 1;
  if (args.beams > 0) {
    TESSERA_REQUIRE(
        !samples && !args.no_cache,
        "--beams finds the likeliest text and draws nothing: leave out --top-k, --top-p, "
        "--min-p, --repetition-penalty and --no-cache");
    TESSERA_REQUIRE(args.samples <= args.beams, "--samples {} of --beams {}; take as many beams",
                    args.samples, args.beams);
  } else {
    TESSERA_REQUIRE(args.length_penalty == 1 && !args.early_stopping,
                    "--length-penalty and --early-stopping are about a beam search; add --beams N");
  }
}

/// Gives the texts of each prompt, which follow each other, the best that the search finds.
void search(const GenerateFlags& args, Generator& generator, const TextTokens& vocabulary,
            std::optional<int32_t> end, const std::vector<Text>& texts) {
  std::vector<BeamRequest> requests;
  for (size_t i = 0; i < texts.size(); i += static_cast<size_t>(args.samples)) {
    BeamRequest request{texts[i].request.prompt, texts[i].request.max_tokens};
    for (const std::optional<int32_t>& each : {vocabulary.end(), end}) {
      if (each && (request.ends.empty() || request.ends[0] != *each)) request.ends.push_back(*each);
    }
    request.results = args.samples;
    request.length_penalty = args.length_penalty;
    request.early_stopping = args.early_stopping;
    requests.push_back(std::move(request));
  }
  const std::vector<std::vector<BeamText>> found = generator.search(requests);
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto n = static_cast<size_t>(args.samples);
    if (i % n >= found[i / n].size()) continue;
    for (const int32_t token : found[i / n][i % n].tokens) {
      if (!texts[i].request.on_token(token)) break;
    }
  }
}

int run_generate(const GenerateFlags& args, const std::vector<ModelSpec>& models) {
  require_writable(args.json);
  require_beams(args);
  Job job = resolve(args, models, false);
  const std::vector<Checkpoint> all = checkpoints_to_read("generate", args.checkpoint, job);
  Cluster cluster = make_cluster(job, args);
  const Watchdog watchdog(cluster, args.timeout);
  std::unique_ptr<Recomputing> recomputing;
  Transformer model;
  if (job.spec->transformer) {
    model = transformer_of(args, job);
  } else {
    recomputing = std::make_unique<Recomputing>(job, cluster);
    model.vocabulary = recomputing->vocabulary();
  }
  const TextTokens vocabulary(args, args.model, job, model.vocabulary);
  std::vector<Text> texts = texts_of(args, job, vocabulary, model.end);
  Printer printer(texts, cluster.is_root());
  int64_t written = 0;
  for (size_t i = 0; i < texts.size(); ++i) {
    texts[i].request.on_token = [&, i](int32_t token) {
      ++written;
      if (token == model.end) return false;
      const bool goes_on = texts[i].stream->push(token);
      printer.show(i);
      return goes_on;
    };
  }
  const int64_t context = longest(texts);
  require_checked(args, model, context);
  std::optional<Checked> checked;
  Checkpoint loaded;
  double begin = 0;
  if (context <= model.length) {
    WritingOptions o{std::min(args.rows, std::ssize(texts)), context, vocabulary.count()};
    o.choices = args.check ? 1 : 0;
    if (args.beams > 0) {
      const int64_t searches = std::ssize(texts) / args.samples;
      o.beams = args.beams;
      o.rows = args.beams * std::clamp<int64_t>(args.rows / args.beams, 1, searches);
    }
    const std::unique_ptr<Generator> generator = make_generator(job, cluster, o);
    loaded = load_parameters(job, args.model, all, *generator);
    std::vector<GenerationRequest> requests;
    for (Text& text : texts) {
      text.request.choices = o.choices;
      requests.push_back(text.request);
    }
    begin = host_seconds();
    if (args.beams > 0) {
      search(args, *generator, vocabulary, model.end, texts);
    } else {
      const std::vector<Generation> results = generator->run(requests);
      if (args.check) {
        Recomputing training(job, cluster);
        training.load(args.model, all);
        checked = check(texts, results, training);
      }
    }
    for (size_t i = 0; i < texts.size(); ++i) printer.complete(i);
  } else {
    TESSERA_REQUIRE(
        args.beams == 0,
        "--beams needs a model that keeps keys and values, and texts of at most its length: "
        "they have {} tokens of {}",
        context, model.length);
    if (!recomputing) recomputing = std::make_unique<Recomputing>(job, cluster);
    loaded = recomputing->load(args.model, all);
    begin = host_seconds();
    for (size_t i = 0; i < texts.size(); ++i) {
      recomputing->write(texts[i].request, vocabulary.count());
      printer.complete(i);
    }
  }
  const double spent = seconds_since(begin);
  if (cluster.is_root()) write_report(args.json, report_of(loaded, texts, written, spent));
  if (!checked) return 0;
  const bool is_strict = strict_chunks_of(job.config) > 0;
  if (cluster.is_root()) say("{}\n", checked->text(is_strict));
  return is_strict && checked->different > 0 ? 1 : 0;
}

}  // namespace

Command generate_command() {
  return command("generate", "Writes text from a checkpoint, or from a folder of Hugging Face.",
                 "tessera generate gpt --checkpoint out/run --prompt \"The whale\"", Processes::all,
                 run_generate);
}

}  // namespace tessera::cli
