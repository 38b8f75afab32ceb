// Generator against recomputing the whole text for every token with nn::transformer().
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/generate.h"
#include "tessera/tessera.h"

using namespace tessera;
using nn::TransformerOptions;
using test::expect_usage;

namespace TESSERA_FILE {

constexpr int64_t kVocab = 23;

TransformerOptions small(int64_t window) {
  TransformerOptions o;
  o.name = "m";
  o.layers = 2, o.d_model = 16, o.vocab = kVocab, o.length = 24, o.batch = 1;
  o.heads.count = 6, o.heads.key_heads = 3, o.heads.d_head = 4;
  o.mlp.ff = 24, o.mlp.gated = true;
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.spans[0].rotary = true;
  if (window > 0) {
    o.spans.push_back(o.spans[0]);
    o.spans[1].window = window;
    o.pattern = {1, 0};
  }
  return o;
}

/// Latent attention in a dense layer and one with experts.
TransformerOptions latent() {
  TransformerOptions o = small(0);
  o.heads.key_heads = 0, o.heads.d_head = 7;
  o.heads.latent = {.rank = 8, .query_rank = 6, .d_rotary = 4, .d_value = 5};
  o.spans.push_back(o.spans[0]);
  o.spans[1].mlp = nn::MlpLayerOptions{.ff = 8, .gated = true, .experts = 4, .shared_ff = 8};
  o.pattern = {0, 1};
  return o;
}

/// Logits of some units, so that texts are not all alike.
void enlarge(Session& session, const std::vector<std::string>& parameters) {
  for (const std::string& name : parameters) {
    if (name.ends_with("scale")) continue;
    Array values = session.fetch(name);
    const float factor = name.ends_with("embedding") ? 30 : 2;
    for (int64_t i = 0; i < values.elements(); ++i) values.data<float>()[i] *= factor;
    session.assign(name, values);
  }
}

/// The new tokens of a request, by a model that reads the whole text for each.
std::vector<int32_t> recomputed(const TransformerOptions& o, const GenerationRequest& request) {
  Graph g;
  const nn::Model model = nn::transformer(g, o);
  Cluster ranks = Cluster::threads(1);
  Session session(g, ranks, {Mesh::parse("a:1"), {}, {{"f", {model.logits}}}, 0, 1});
  std::vector<std::string> names;
  for (const Tensor& p : g.parameters()) names.push_back(p.name());
  enlarge(session, names);
  std::vector<int32_t> text = request.prompt, made;
  while (std::ssize(made) < request.max_tokens) {
    Array inputs(DType::int32, {"batch", "length"}, {1, o.length});
    std::copy(text.begin(), text.end(), inputs.data<int32_t>());
    session.feed("inputs", inputs);
    session.run("f");
    const Array logits = session.fetch(model.logits.name());
    made.push_back(sample_token(logits.data<float>() + (std::ssize(text) - 1) * kVocab, kVocab,
                                text, request.sampling));
    text.push_back(made.back());
  }
  return made;
}

/// Prompts of different lengths, greedy and sampled.
std::vector<GenerationRequest> requests() {
  std::vector<GenerationRequest> all;
  for (int r = 0; r < 5; ++r) {
    GenerationRequest request;
    for (int i = 0; i < 1 + 4 * r % 11; ++i) request.prompt.push_back((i * i + 7 * r) % kVocab);
    request.max_tokens = 12 - r;
    request.sampling.temperature = r % 2 == 0 ? 0 : 1.5;
    request.sampling.seed = static_cast<uint64_t>(r);
    if (r == 3) request.sampling.top_k = 7, request.sampling.repetition_penalty = 1.3;
    all.push_back(request);
  }
  return all;
}

struct Place {
  const char* mesh;
  const char* layout;
};
const std::vector<Place> kPlaces = {{"a:1", ""},
                                    {"model:2", "heads,ff,vocab:model"},
                                    {"data:2;model:2", "batch:data;heads,ff,vocab:model"},
                                    {"data:2", "batch:data;@params d_model:data"}};

struct Writer {
  Cluster ranks;
  Generator generator;
  Writer(const TransformerOptions& model, const Place& place, GeneratorOptions o)
      : ranks(Cluster::threads(static_cast<int>(Mesh::parse(place.mesh).size()))),
        generator(model, ranks, set(o, place)) {
    enlarge(generator.session(), generator.parameters());
  }
  static GeneratorOptions set(GeneratorOptions o, const Place& place) {
    o.mesh = Mesh::parse(place.mesh);
    o.layout = Layout::parse(place.layout);
    o.threads_per_rank = 1;
    return o;
  }
};

TEST_CASE("texts with a cache are those of recomputing, under four layouts", "[generate]") {
  for (const TransformerOptions& model : {small(0), small(5), latent()}) {
    const std::vector<GenerationRequest> all = requests();
    std::vector<std::vector<int32_t>> want;
    for (const GenerationRequest& r : all) want.push_back(recomputed(model, r));
    CHECK(std::set<int32_t>(want[1].begin(), want[1].end()).size() > 3);
    for (const Place& place : kPlaces) {
      for (const int64_t rows : {1, 3}) {
        INFO("latents of " << model.heads.latent.rank << ", kinds of layers " << model.spans.size()
                           << " " << place.mesh << " " << place.layout << " rows " << rows);
        GeneratorOptions o;
        o.rows = rows, o.chunk = 4;
        Writer writer(model, place, o);
        const std::vector<Generation> got = writer.generator.run(all);
        for (size_t i = 0; i < all.size(); ++i) {
          INFO("request " << i);
          CHECK(got[i].tokens == want[i]);
          CHECK_FALSE(got[i].ended);
        }
      }
    }
  }
}

TEST_CASE("a text ends where its caller says, and another takes its row", "[generate]") {
  GeneratorOptions o;
  o.rows = 2;
  Writer writer(small(0), kPlaces[0], o);
  std::vector<GenerationRequest> all = requests();
  const std::vector<Generation> whole = writer.generator.run(all);
  std::vector<int32_t> shown;
  all[1].on_token = [&](int32_t token) {
    shown.push_back(token);
    return shown.size() < 4;
  };
  const std::vector<Generation> got = writer.generator.run(all);
  CHECK(got[1].ended);
  CHECK(got[1].tokens == shown);
  CHECK(shown == std::vector<int32_t>(whole[1].tokens.begin(), whole[1].tokens.begin() + 4));
  for (const size_t i : {0, 2, 3, 4}) CHECK(got[i].tokens == whole[i].tokens);
}

TEST_CASE("scores of a prompt and of new tokens are one distribution", "[generate]") {
  GeneratorOptions o;
  o.rows = 2, o.chunk = 4, o.choices = 3;
  Writer writer(small(5), kPlaces[2], o);
  std::vector<GenerationRequest> all = requests();
  all[2].choices = 2;
  const Generation written = writer.generator.run(all)[2];
  REQUIRE(written.scores.size() == written.tokens.size());
  GenerationRequest whole;
  whole.prompt = all[2].prompt;
  whole.prompt.insert(whole.prompt.end(), written.tokens.begin(), written.tokens.end());
  whole.max_tokens = 0, whole.score_prompt = true, whole.choices = 3;
  const Generation read = writer.generator.run({all[0], whole})[1];
  CHECK(read.tokens.empty());
  REQUIRE(read.prompt_scores.size() == whole.prompt.size() - 1);
  for (size_t i = 0; i < written.scores.size(); ++i) {
    const TokenScore &a = written.scores[i], &b = read.prompt_scores[all[2].prompt.size() - 1 + i];
    CHECK(a.token == written.tokens[i]);
    CHECK(b.token == a.token);
    CHECK(a.log_prob == Approx(b.log_prob).margin(2e-5));
    REQUIRE(a.best.size() == 2);
    REQUIRE(b.best.size() == 3);
    CHECK(a.best[0].first == a.token);  // greedy
    CHECK(b.best[1].second == Approx(a.best[1].second).margin(2e-5));
    CHECK(a.best[0].second >= a.best[1].second);
  }
}

TEST_CASE("only tokens of the tokenizer are written", "[generate]") {
  GeneratorOptions o;
  o.vocabulary = 5;
  Writer writer(small(0), kPlaces[1], o);
  for (const Generation& text : writer.generator.run(requests())) {
    for (const int32_t token : text.tokens) CHECK(token < 5);
  }
}

TEST_CASE("requests that cannot be met are usage errors", "[generate][errors]") {
  GeneratorOptions o;
  o.context = 6;
  Writer writer(small(0), kPlaces[0], o);
  CHECK(writer.generator.context() == 6);
  const auto refused = [&](GenerationRequest request, const std::string& words) {
    expect_usage({"[generate]", words}, [&] { writer.generator.run({{{1}, 1}, request}); });
  };
  refused({{}, 1}, "prompt 1 has no tokens; give at least one");
  refused({{3, 23}, 1}, "token 1 of prompt 1 is 23, and the vocabulary has 23");
  refused({{3, -1}, 1}, "token 1 of prompt 1 is -1");
  refused({{3}, -1}, "prompt 1: -1 new tokens");
  refused({{1, 2, 3, 4}, 3},
          "prompt 1 has 4 tokens, and 3 new ones are more than the context of 6 has left; shorten "
          "the prompt, or ask for at most 2");
  refused({std::vector<int32_t>(7), 0}, "prompt 1 has 7 tokens");
  GenerationRequest scored{{1}, 1};
  scored.choices = 1;
  refused(scored, "prompt 1: 1 choices; GeneratorOptions::choices is 0");
  scored.choices = 0, scored.score_prompt = true;
  refused(scored, "0 choices and scores of the prompt");
  CHECK(writer.generator.run({{{1, 2, 3, 4}, 2}})[0].tokens.size() == 2);
  o.vocabulary = 24;
  expect_usage({"[generate] only tokens below 24 are to be chosen, and the model has 23"},
               [&] { Writer(small(0), kPlaces[0], o); });
}

}  // namespace TESSERA_FILE
