// Under strict numerics the log-probabilities of sampled tokens have the same bits in a batch of
// any size and under any layout.
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

std::vector<Generation> written(const Setting& s, int64_t strict_chunks) {
  const Mesh mesh = Mesh::parse(s.mesh);
  Cluster ranks = Cluster::threads(mesh.size());
  GeneratorOptions options;
  options.mesh = mesh;
  options.layout = Layout::parse(s.layout);
  options.rows = s.rows;
  options.choices = 1;
  options.strict_chunks = strict_chunks;
  Generator generator(small(), ranks, options);
  return generator.run(requests());
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
