// Sequence parallelism by one rule: with norms split by length, what tensor parallelism adds up on
// all ranks is scattered where it is added and gathered behind the norms (Korthikanti et al. 2022,
// figure 5), so that as many bytes are sent.
#include <map>

#include "support/catch.h"
#include "support/gpt_run.h"
#include "tessera/explain.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

constexpr const char* kTensor = "heads,ff,vocab:model";
constexpr const char* kSequence = "heads,ff,vocab:model;@/*norm*/ length:model";

nn::GptOptions size() {
  nn::GptOptions o;
  o.layers = 3;
  o.d_model = 64;
  o.heads = 4;
  o.ff = 256;
  o.length = 16;
  o.vocab = 256;
  o.batch = 4;
  return o;
}

/// Bytes of a rank by kind, of what is as large as an activation, and of the rest.
struct Sent {
  std::map<std::string, int64_t> large;
  int64_t small = 0;
};

Sent sent(const std::string& layout) {
  const nn::GptOptions o = size();
  const int64_t slice = o.batch * o.length * o.d_model * 4 / 4;  // of 4 ranks
  Graph g;
  const nn::Model model = nn::gpt(g, o);
  minimize(model.loss, constant(g, 0.01), adam());
  const Explanation e =
      explain(g, {Mesh::parse("model:4"), Layout::parse(layout), {{"train", {model.loss}, true}}});
  Sent result;
  for (const CollectiveReport& c : e.functions.back().collectives) {
    if (c.bytes >= slice * c.times) {
      result.large[c.kind] += c.bytes;
    } else {
      result.small += c.bytes;
    }
  }
  return result;
}

TEST_CASE("sequence parallelism scatters and gathers what tensor parallelism reduces") {
  const Sent tensor = sent(kTensor), sequence = sent(kSequence);
  INFO(tensor.small << " and " << sequence.small);
  REQUIRE(tensor.large.size() == 1);
  const int64_t reduced = tensor.large.at("all_reduce");
  const nn::GptOptions o = size();
  // The embedding's sum, and two a block forward and backward, and that of the head: 3/4 of the
  // tensor twice.
  const int64_t whole = o.batch * o.length * o.d_model * 4;
  CHECK(reduced == (1 + 4 * o.layers + 1) * 2 * whole * 3 / 4);
  CHECK(sequence.large.count("all_reduce") == 0);
  int64_t all = 0;
  for (const auto& [kind, bytes] : sequence.large) all += bytes;
  CHECK(sequence.large.at("reduce_scatter") >= reduced / 2);
  CHECK(sequence.large.at("all_gather") > 0);
  CHECK(all <= reduced);
  CHECK(sequence.small < reduced / 20);  // gradients of norms and biases are sums over ranks
}

TEST_CASE("sequence parallelism changes no loss") {
  Cluster one = Cluster::threads(1), four = Cluster::threads(4);
  const GptOutcome plain = train_small_gpt(one, Mesh::parse("model:1"), "", DType::float64, 4);
  const GptOutcome split =
      train_small_gpt(four, Mesh::parse("data:2;model:2"),
                      "batch:data;heads,ff,vocab:model;@/*norm*/ length:model;@state d_model:data",
                      DType::float64, 4);
  for (size_t i = 0; i < plain.losses.size(); ++i)
    CHECK(split.losses[i] == Approx(plain.losses[i]).epsilon(1e-12));
}

}  // namespace TESSERA_FILE
