// Under strict numerics the log-probabilities of sampled tokens have the same bits in a batch of
// any size and under any layout, and they are those of the training forward.
#include <map>

#include "base/fail.h"
#include "support/catch.h"
#include "tessera/generate.h"
#include "tessera/tessera.h"

using namespace tessera;

namespace TESSERA_FILE {

constexpr int64_t kVocab = 23, kLength = 24, kChunks = 16;

nn::TransformerOptions small() {
  nn::TransformerOptions o;
  o.name = "m";
  o.layers = 2, o.d_model = 16, o.vocab = kVocab, o.length = kLength, o.batch = 1;
  o.heads.count = 6, o.heads.key_heads = 3, o.heads.d_head = 4;
  o.mlp.ff = 24, o.mlp.gated = true;
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.spans[0].rotary = true;
  return o;
}

std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> all;
  for (int r = 0; r < 9; ++r) {
    GenerationRequest request;
    for (int i = 0; i <= r % 4; ++i) request.prompt.push_back((5 * r + 3 * i + 1) % kVocab);
    request.max_tokens = 12;
    request.choices = 1;
    request.sampling.temperature = r % 3 == 0 ? 0 : 0.9;
    request.sampling.stream = static_cast<uint64_t>(r);
    all.push_back(std::move(request));
  }
  return all;
}

struct Setting {
  const char *mesh, *layout;
  int64_t rows;
};

std::vector<Generation> written(const Setting& s, int64_t strict_chunks,
                                const nn::TransformerOptions& model = small(),
                                std::map<std::string, Array>* parameters = nullptr) {
  const Mesh mesh = Mesh::parse(s.mesh);
  Cluster ranks = Cluster::threads(mesh.size());
  GeneratorOptions options;
  options.mesh = mesh;
  options.layout = Layout::parse(s.layout);
  options.rows = s.rows;
  options.choices = 1;
  options.strict_chunks = strict_chunks;
  Generator generator(model, ranks, options);
  if (parameters != nullptr) {
    for (const std::string& name : generator.parameters())
      (*parameters)[name] = generator.session().fetch(name);
  }
  return generator.run(requests());
}

/// The float32 logits of whole texts by the graph of training, [text, length, vocab].
std::vector<double> logits_of_training(nn::TransformerOptions model, const char* mesh,
                                       const char* layout,
                                       const std::map<std::string, Array>& parameters,
                                       const std::vector<std::vector<int32_t>>& texts) {
  Graph g;
  model.batch = std::ssize(texts);
  const nn::Model built = nn::transformer(g, model);
  Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
  CompileOptions options{
      Mesh::parse(mesh), Layout::parse(layout), {{"logits", {built.logits}, false}}};
  options.strict_chunks = kChunks;
  Session session(g, ranks, options);
  for (const auto& [name, value] : parameters) session.assign(name, value);
  Array tokens(DType::int32, built.tokens.shape().names(), {model.batch, model.length});
  for (size_t r = 0; r < texts.size(); ++r)
    std::copy(texts[r].begin(), texts[r].end(),
              tokens.data<int32_t>() + static_cast<int64_t>(r) * model.length);
  session.feed(built.tokens.name(), tokens);
  session.run("logits");
  const Array logits = session.fetch(built.logits.name());
  std::vector<double> values;
  for (int64_t i = 0; i < logits.elements(); ++i) values.push_back(logits.at(i));
  return values;
}

/// Models whose attention differs: windows, soft caps, sinks, latents, biases, 16 bits.
std::map<std::string, nn::TransformerOptions> models() {
  std::map<std::string, nn::TransformerOptions> all = {{"grouped keys", small()}};
  nn::TransformerOptions o = small();
  o.spans[0].window = 5;
  all["window"] = o;
  o = small();
  o.heads.soft_cap = 20;
  all["soft cap"] = o;
  o = small();
  o.heads.sinks = true;
  all["sinks"] = o;
  o = small();
  o.heads.norm = true;
  all["norms of keys"] = o;
  o = small();
  o.heads.key_heads = 0;
  o.heads.latent.rank = 8, o.heads.latent.d_rotary = 2, o.heads.latent.d_value = 3;
  all["latent"] = o;
  o = small();
  o.spans[0].rotary = false;
  o.relative_buckets = 8, o.relative_distance = 16;
  all["biases by distance"] = o;
  o = small();
  o.dtype = DType::bfloat16;
  o.spans[0].rotary = false;
  o.learned_positions = true;
  o.scan = true;
  all["bfloat16, layers in a loop"] = o;
  return all;
}

TEST_CASE("a sampler's log-probabilities are the bits of the training forward", "[strict]") {
  for (const auto& [name, model] : models()) {
    INFO(name);
    std::map<std::string, Array> parameters;
    const std::vector<Generation> sampled =
        written({"a:2", "vocab:a", 4}, kChunks, model, &parameters);
    std::vector<std::vector<int32_t>> texts;
    for (size_t r = 0; r < sampled.size(); ++r) {
      texts.push_back(requests()[r].prompt);
      texts.back().insert(texts.back().end(), sampled[r].tokens.begin(), sampled[r].tokens.end());
    }
    const std::vector<double> logits =
        logits_of_training(model, "a:3;b:2", "batch:a;ff:b", parameters, texts);
    for (size_t r = 0; r < texts.size(); ++r) {
      const size_t prompt = texts[r].size() - sampled[r].tokens.size();
      for (size_t i = 0; i < sampled[r].tokens.size(); ++i) {
        const size_t at = (r * kLength + prompt - 1 + i) * kVocab;
        std::vector<float> row(logits.begin() + static_cast<std::ptrdiff_t>(at),
                               logits.begin() + static_cast<std::ptrdiff_t>(at + kVocab));
        const TokenScore score = token_score(row.data(), kVocab, sampled[r].tokens[i], 1);
        INFO("text " << r << ", token " << i);
        CHECK(score.log_prob == sampled[r].scores[i].log_prob);
      }
    }
  }
}

TEST_CASE("no batch size and no layout changes a bit of sampled log-probabilities", "[strict]") {
  const std::vector<Generation> expected = written({"a:1", "", 1}, kChunks);
  const Setting kSettings[] = {
      {"a:1", "", 7},          {"a:2", "batch:a", 4},           {"a:3", "heads_per_key?:a;ff:a", 3},
      {"a:2", "vocab:a", 1},   {"a:2;b:2", "ff:a;vocab:b", 32}, {"a:2", "d_model:a", 5},
      {"a:3", "d_model:a", 2},
  };
  for (const Setting& s : kSettings) {
    const std::vector<Generation> other = written(s, kChunks);
    for (size_t r = 0; r < expected.size(); ++r) {
      INFO(fmt::format("mesh {}, layout {}, {} rows, text {}", s.mesh, s.layout, s.rows, r));
      REQUIRE(other[r].tokens == expected[r].tokens);
      for (size_t i = 0; i < expected[r].scores.size(); ++i)
        REQUIRE(other[r].scores[i].log_prob == expected[r].scores[i].log_prob);
    }
  }
}

}  // namespace TESSERA_FILE
