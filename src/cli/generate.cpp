// Text from a language model: the whole window is computed for every token, which is simple and
// exact.
#include <cmath>
#include <random>

#include "base/fail.h"
#include "cli/commands.h"
#include "tessera/checkpoint.h"

namespace tessera::cli {

namespace {

/// One token from the logits of one position, by temperature; 0 takes the largest.
int32_t sample(const Array& logits, int64_t position, int64_t vocab, double temperature,
               std::mt19937_64& random) {
  std::vector<double> weights(static_cast<size_t>(vocab));
  double top = -1e300;
  int64_t best = 0;
  for (int64_t v = 0; v < vocab; ++v) {
    const double x = logits.at(position * vocab + v);
    if (x > top) top = x, best = v;
  }
  if (temperature <= 0) return static_cast<int32_t>(best);
  for (int64_t v = 0; v < vocab; ++v)
    weights[v] = std::exp((logits.at(position * vocab + v) - top) / temperature);
  std::discrete_distribution<int32_t> pick(weights.begin(), weights.end());
  return pick(random);
}

}  // namespace

int generate(const Arguments& args, const std::vector<ModelSpec>& models) {
  require(!args.checkpoint.empty(), "generate needs --checkpoint DIR");
  const std::optional<Checkpoint> latest = find_latest(args.checkpoint);
  require(latest.has_value(), "'{}' holds no checkpoint", args.checkpoint);
  Job job = resolve(args, models, false);
  take_stored_model(job, *latest);
  require(job.spec->name == "gpt", "generate needs a language model; '{}' is none", job.spec->name);
  Cluster cluster = make_cluster(job, args);
  const int64_t length = job.config.integer("model.length"),
                vocab = job.config.integer("model.vocab");
  Graph g;
  nn::Model model = job.spec->build(g, job.config, 1, false);
  Session session(g, cluster, {job.mesh, job.layout, {{"logits", {model.logits}, false}}, 0, 1});
  for (const std::string& name : session.stored_names())
    session.assign(name, read_tensor(latest->path, name));
  std::vector<int32_t> tokens;
  for (unsigned char c : args.prompt.empty() ? std::string("\n") : args.prompt) {
    require(c < vocab, "the prompt has byte {}, beyond the model's vocabulary of {}", int{c},
            vocab);
    tokens.push_back(c);
  }
  std::mt19937_64 random(static_cast<uint64_t>(job.config.integer("train.seed")));
  if (cluster.is_root()) fmt::print("{}", args.prompt);
  Array window(DType::int32, {"batch", "length"}, {1, length});
  for (int64_t i = 0; i < args.tokens; ++i) {
    const int64_t used = std::min<int64_t>(length, static_cast<int64_t>(tokens.size()));
    for (int64_t p = 0; p < length; ++p) {
      window.data<int32_t>()[p] =
          p < used ? tokens[tokens.size() - static_cast<size_t>(used - p)] : 0;
    }
    session.feed("inputs", window);
    session.run("logits");
    tokens.push_back(
        sample(session.fetch(model.logits.name()), used - 1, vocab, args.temperature, random));
    if (cluster.is_root()) {
      std::fputc(tokens.back(), stdout);
      std::fflush(stdout);
    }
  }
  if (cluster.is_root()) std::fputc('\n', stdout);
  return 0;
}

}  // namespace tessera::cli
