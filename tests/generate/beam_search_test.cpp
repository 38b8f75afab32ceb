// Beam search against what transformers found with the same models (tests/models/*/beams.json), and
// models with an encoder.
#include <nlohmann/json.hpp>

#include "base/files.h"
#include "support/expect_error.h"
#include "support/model_run.h"
#include "tessera/generate.h"
#include "tessera/tessera.h"

namespace tessera {
namespace TESSERA_FILE {

using test::expect_usage;
using test::kModels;
using Json = nlohmann::json;

struct Place {
  const char *mesh, *layout;
};
const std::vector<Place> kPlaces = {{"a:1", ""},
                                    {"model:2", "heads,ff,vocab:model"},
                                    {"data:2", "batch:data;@params d_model:data"},
                                    {"data:2;model:2", "batch:data;heads,ff,vocab:model"}};

/// A generator with the weights of a folder.
struct Loaded {
  ModelFolder folder;
  Cluster ranks;
  Generator generator;
  Loaded(const std::string& name, const Place& place, GeneratorOptions o, bool scan = true)
      : folder(kModels + name),
        ranks(Cluster::threads(static_cast<int>(Mesh::parse(place.mesh).size()))),
        generator(options(scan), ranks, set(std::move(o), place)) {
    folder.load(generator.session(), options(scan));
  }
  nn::TransformerOptions options(bool scan) const {
    nn::TransformerOptions o = folder.options();
    o.scan = scan;
    return o;
  }
  static GeneratorOptions set(GeneratorOptions o, const Place& place) {
    o.mesh = Mesh::parse(place.mesh);
    o.layout = Layout::parse(place.layout);
    o.threads_per_rank = 1;
    o.context = 24;
    return o;
  }
};

TEST_CASE("beam search finds the texts of transformers, under four layouts", "[generate]") {
  for (const char* name : {"t5", "llama"}) {
    const Json cases = Json::parse(read_text_file("test", kModels + name + "/beams.json"));
    std::vector<BeamRequest> requests;
    for (const Json& c : cases) {
      BeamRequest r{c["prompt"], 10, c["ends"], 2};
      r.length_penalty = c["length_penalty"];
      r.early_stopping = c["early_stopping"];
      requests.push_back(std::move(r));
    }
    for (const Place& place : kPlaces) {
      GeneratorOptions o;
      o.rows = 12, o.beams = 4, o.chunk = 5;
      Loaded loaded(name, place, o, place.mesh[0] != 'm');
      // Every prompt on one rank, fewer elsewhere.
      const size_t count = place.mesh[0] == 'a' ? requests.size() : 20;
      const auto found = loaded.generator.search({requests.begin(), requests.begin() + count});
      REQUIRE(found.size() == count);
      for (size_t i = 0; i < count; ++i) {
        INFO(name << " on " << place.mesh << ", prompt " << i);
        REQUIRE(found[i].size() == 2);
        for (size_t k = 0; k < 2; ++k) {
          CHECK(found[i][k].tokens == cases[i]["texts"][k].get<std::vector<int32_t>>());
          CHECK(found[i][k].score == Approx(cases[i]["scores"][k].get<double>()).margin(2e-4));
        }
      }
    }
  }
}

TEST_CASE("one beam is the likeliest token each time, and a model with an encoder answers",
          "[generate]") {
  for (const char* name : {"t5", "t5-old", "llama"}) {
    GeneratorOptions o;
    o.rows = 3, o.beams = 1;
    Loaded loaded(name, kPlaces[3], o);
    std::vector<GenerationRequest> requests;
    std::vector<BeamRequest> searches;
    for (int i = 0; i < 5; ++i) {
      std::vector<int32_t> prompt;
      for (int k = 0; k < 1 + 3 * i % 7; ++k) prompt.push_back((k * k + 11 * i) % 96);
      requests.push_back({prompt, 4 + i});
      requests.back().sampling.temperature = 0;
      searches.push_back({prompt, 4 + i});
    }
    const auto written = loaded.generator.run(requests);
    const auto found = loaded.generator.search(searches);
    for (size_t i = 0; i < requests.size(); ++i) {
      INFO(name << ", prompt " << i);
      CHECK(written[i].tokens.size() == 4 + i);
      CHECK(found[i].at(0).tokens == written[i].tokens);
    }
    CHECK(written[1].tokens != written[2].tokens);
  }
}

TEST_CASE("searches that cannot be are usage errors", "[generate][errors]") {
  GeneratorOptions o;
  o.rows = 4, o.beams = 2;
  Loaded loaded("t5", kPlaces[0], o);
  const auto refused = [&](const BeamRequest& request, const char* words) {
    expect_usage({"[generate]", words}, [&] { loaded.generator.search({request}); });
  };
  refused({{}, 1}, "prompt 0 has no tokens");
  refused({{1}, 1, {}, 3}, "prompt 0: 3 results of 2 beams");
  refused({{1}, 1, {}, 1, INFINITY}, "length_penalty inf; it is finite");
  refused({std::vector<int32_t>(25, 1), 1}, "prompt 0 has 25 tokens");
  refused({std::vector<int32_t>(24, 1), 24}, "ask for at most 23");
  CHECK(loaded.generator.search({{std::vector<int32_t>(24, 1), 23}})[0].size() == 1);
  Session& session = loaded.generator.session();
  Array broken = session.fetch(loaded.generator.parameters()[0]);
  std::fill_n(broken.data<float>(), broken.elements(), NAN);
  session.assign(loaded.generator.parameters()[0], broken);
  refused({{1}, 4}, "the parameters have values that are not finite");
  o.beams = 3;
  expect_usage({"[generate] 4 rows for texts of 3 beams each"},
               [&] { Loaded("t5", kPlaces[0], o); });
  o.beams = 0;
  Loaded without("llama", kPlaces[0], o);
  expect_usage({"[generate] search() needs rows for its beams"}, [&] {
    without.generator.search({{{1}, 1}});
  });
  o.choices = 1;
  expect_usage({"[generate] 1 choices; the tokens of a prompt that an encoder reads"},
               [&] { Loaded("t5", kPlaces[0], o); });
}

}  // namespace TESSERA_FILE
}  // namespace tessera
