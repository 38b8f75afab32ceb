// Attention whose queries and keys are split over the same ranks: equal to the unsplit one in
// values and gradients, and what goes round is asserted on the Program. The same where each rank
// has two intervals with equal work (`length:a*2`).
#include <cmath>
#include <map>

#include "base/fail.h"
#include "ops/attention_cut.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "support/gpt_run.h"
#include "support/program_run.h"
#include "support/reference.h"
#include "tessera/explain.h"

using namespace tessera;
using namespace tessera::test;

namespace TESSERA_FILE {

struct Sizes {
  int64_t length = 8, memory = 8;
  bool causal = true, shared = false;
  bool structured = false;  ///< with window, segments and soft cap
  bool sloped = false;      ///< with a slope of distances for each head
  bool biased = false;      ///< with biases by distance, whose gradient is a result too
  bool dropout = false;
};

/// Weights of every element, so that no gradient is zero by symmetry.
Tensor weighted(const Tensor& x) {
  Graph& g = x.graph();
  Tensor w = constant(g, 0.3, x.dtype());
  for (const Dim& d : x.shape())
    w = w + sin(cast(iota(g, d), x.dtype()) * (1.0 + static_cast<double>(d.size)));
  return sum_all(x * w);
}

struct Model {
  Graph g;
  std::vector<Tensor> inputs;
  std::vector<FunctionSpec> functions;

  explicit Model(const Sizes& sizes, DType dtype = DType::float64) {
    const Dim batch("batch", 2), heads("heads", 2), length("length", sizes.length),
        memory("memory_length", sizes.memory), d_head("d_head", 4);
    const std::vector<Dim> keys = sizes.shared ? std::vector<Dim>{batch, memory, d_head}
                                               : std::vector<Dim>{batch, heads, memory, d_head};
    inputs = {g.input("q", {batch, heads, length, d_head}, dtype), g.input("k", Shape(keys), dtype),
              g.input("v", Shape(keys), dtype)};
    AttentionOptions options;
    options.causal = sizes.causal;
    if (sizes.structured) {
      const auto ids = [&](const Dim& d) {  // two segments, and padding at the end
        const Tensor i = iota(g, d);
        const auto number = [&](int x) { return constant(g, x, DType::int32); };
        const Tensor id = where(i >= number(3), number(2), number(1));
        return where(i >= number(7), number(0), id);
      };
      options.window = 4;
      options.soft_cap = 1.5;
      options.segments = ids(length);
      options.memory_segments = ids(memory);
    }
    if (sizes.biased) {
      inputs.push_back(g.input("entries", {Dim("entries", 7), heads}, dtype));
      options.by_distance = inputs.back();
    }
    if (sizes.dropout) options.dropout = 0.4;
    if (sizes.sloped) options.slopes = cast(iota(g, heads), dtype) * 0.5 + 0.25;
    const Tensor out = attention(inputs[0], inputs[1], inputs[2], {}, options).named("out");
    std::vector<Tensor> results = gradients(weighted(out), inputs);
    for (size_t i = 0; i < results.size(); ++i)
      results[i] = results[i].named("gradient of " + inputs[i].name());
    results.insert(results.begin(), out);
    functions = {{"run", results, false}};
  }

  Wholes run(const std::string& mesh, const std::string& layout) const {
    Wholes values;
    for (const Tensor& t : inputs) {
      std::vector<int64_t> sizes;
      for (const Dim& d : t.shape()) sizes.push_back(d.size);
      Whole w(t.shape().names(), sizes);
      for (size_t i = 0; i < w.data.size(); ++i)
        w.data[i] = std::sin(1.7 * static_cast<double>(i) + static_cast<double>(t.name()[0]));
      values.emplace(t.name(), std::move(w));
    }
    const Program program = lower_for_cpu(g, mesh, layout, functions);
    Cluster cluster = Cluster::threads(Mesh::parse(mesh).size());
    return run_program(program, cluster, "run", values);
  }
};

/// Largest difference over the largest value of all.
double difference(const Wholes& a, const Wholes& b) {
  double most = 0, largest = 0;
  for (const auto& [name, x] : a) {
    const Whole& y = b.at(name);
    REQUIRE(x.sizes == y.sizes);
    for (size_t i = 0; i < x.data.size(); ++i) {
      most = std::max(most, std::abs(x.data[i] - y.data[i]));
      largest = std::max(largest, std::abs(y.data[i]));
      REQUIRE(std::isfinite(x.data[i]));
    }
  }
  return most / largest;
}

/// Times and bytes of each kind of collective of a function.
struct Sent {
  int64_t times = 0, bytes = 0;
  bool operator==(const Sent&) const = default;
};
std::map<std::string, Sent> sent(const Graph& g, const std::string& mesh, const std::string& layout,
                                 const std::vector<FunctionSpec>& functions) {
  std::map<std::string, Sent> result;
  const Explanation e = explain(g, {Mesh::parse(mesh), Layout::parse(layout), functions});
  for (const CollectiveReport& c : e.functions.back().collectives) {
    result[c.kind].times += c.times;
    result[c.kind].bytes += c.bytes;
  }
  return result;
}

const char* const kRing = "length,memory_length:a";
const char* const kBalanced = "length?:a*2";
const char* const kBalancedRing = "length?,memory_length?:a*2";

TEST_CASE("ring: attention by slices has the values and gradients of the whole") {
  const std::vector<Sizes> cases = {{8, 8, true, false},
                                    {8, 8, false, false},
                                    {9, 9, true, true},
                                    {7, 10, false, true},
                                    {5, 3, true, false},
                                    {3, 12, true, false},
                                    {8, 8, true, false, true},
                                    {9, 9, false, true, true},
                                    {7, 10, true, true, true},
                                    {8, 8, true, false, false, true},
                                    {7, 10, false, true, false, true},
                                    {9, 9, true, true, true, true},
                                    {8, 8, true, false, false, false, true},
                                    {7, 10, false, true, false, false, true},
                                    {9, 9, true, true, true, true, true},
                                    {8, 8, true, false, false, false, false, true},
                                    {7, 10, false, true, false, false, false, true},
                                    {9, 9, true, false, true, true, true, true}};
  for (const Sizes& sizes : cases) {
    const Model model(sizes);
    const Wholes whole = model.run("a:1", "");
    for (const auto& [mesh, layout] : std::vector<std::pair<std::string, std::string>>{
             {"a:2", kRing},
             {"a:3", kRing},
             {"a:4", kRing},
             {"b:2;a:2", "length,memory_length:b+a"},
             {"b:2;a:2", "batch:b;length,memory_length:a"},
             {"b:2;a:3", "heads:b;length,memory_length:a"},
             {"a:2", kBalancedRing},
             {"a:3", kBalancedRing},
             {"a:4", kBalancedRing},
             {"b:2;a:2", "length?,memory_length?:b+a*2"},
             {"b:2;a:3", "heads:b;length?,memory_length?:a*2"},
             {"a:2", "length:a"},
             {"a:3;b:2", "length:a;batch:b"},
             {"a:2", kBalanced},
             {"a:3", kBalanced},
             {"a:4", kBalanced},
             {"a:2;b:2", "length?:a*2;memory_length:b"},
             {"a:2;b:2", "length?:b+a*2"},
             {"a:3;b:2", "length?:a*2;batch:b"},
             {"a:2", "memory_length:a"}}) {
      INFO(sizes.length << " queries, " << sizes.memory << " keys, causal " << sizes.causal
                        << ", shared " << sizes.shared << ", structured " << sizes.structured
                        << ", sloped " << sizes.sloped << ", biased " << sizes.biased
                        << ", dropout " << sizes.dropout << ", " << mesh << ", " << layout);
      CHECK(difference(model.run(mesh, layout), whole) < 1e-13);
    }
  }
}

TEST_CASE("ring: what goes round is keys and values, and once more with their gradients") {
  const Model model({16, 16, true, false}, DType::float32);
  // Of a rank: keys and values, [batch 2, heads 2, 16 / 4, d_head 4] float32.
  const int64_t slice = 2 * 2 * 4 * 4 * 4;
  const auto found = sent(model.g, "a:4", kRing, model.functions);
  INFO((found.empty() ? "nothing" : found.begin()->first));
  REQUIRE(found.size() == 1);
  CHECK(found.contains("exchange"));
  CHECK(found.begin()->second == Sent{2 * 3 + 2 * 3 + 2 * 4, (2 * 3 + 2 * 3 + 2 * 4) * slice});
  // Forward alone.
  const std::vector<FunctionSpec> forward = {{"run", {model.functions[0].outputs[0]}, false}};
  CHECK(sent(model.g, "a:4", kRing, forward).begin()->second == Sent{6, 6 * slice});
}

TEST_CASE("balanced: second halves of the queries are sent, and nothing else is added") {
  const Model model({16, 16, true, false}, DType::float32);
  const int64_t half = 2 * 2 * 2 * 4 * 4;  // [batch 2, heads 2, 16 / 4 / 2, d_head 4] float32
  const std::vector<FunctionSpec> forward = {{"run", {model.functions[0].outputs[0]}, false}};
  auto found = sent(model.g, "a:4", "length:a*2", forward);
  const auto plain = sent(model.g, "a:4", "length:a", forward);
  CHECK(found["exchange"] == Sent{2, 2 * half});  // the query, and the result
  found.erase("exchange");
  CHECK(found == plain);
  // Keys and values go round in two intervals each.
  auto ring = sent(model.g, "a:4", "length,memory_length:a*2", forward);
  CHECK(ring["exchange"] == Sent{2 + 2 + 2 * 2 * 3, (2 + 2 + 2 * 2 * 3) * half});
  CHECK(ring.size() == 1);
}

/// By rank: pairs of queries and keys that a causal structure leaves of `length` in intervals,
/// after each of so many turns of the keys.
std::vector<std::vector<int64_t>> visible_pairs(int64_t length, int64_t ranks, bool balanced,
                                                bool ring) {
  Graph g;
  const Dim whole("length", length), slices("length", ranks);
  const AttentionCut cut(whole, slices, balanced);
  const int64_t inner = (length + ranks - 1) / ranks;
  const auto size = [&](size_t i) {
    return i == 0 && cut.intervals() == 2 ? (inner + 1) / 2
           : cut.intervals() == 2         ? inner / 2
                                          : inner;
  };
  std::vector<Tensor> starts;
  for (int64_t turns = 0; turns < ranks; ++turns) {
    for (size_t i = 0; i < cut.intervals(); ++i)
      starts.push_back(cut.start(g, i, turns).named(fmt::format("start{}", starts.size())));
  }
  Cluster one = Cluster::threads(1);
  Session session(g, one, {Mesh(), Layout(), {{"starts", starts, false}}});
  session.run("starts");
  const auto start = [&](int64_t rank, size_t i, int64_t turns) {
    const Tensor& t = starts[static_cast<size_t>(turns) * cut.intervals() + i];
    return static_cast<int64_t>(session.fetch(t.name()).at(rank));
  };
  std::vector<std::vector<int64_t>> pairs(static_cast<size_t>(ranks));
  for (int64_t r = 0; r < ranks; ++r) {
    for (int64_t turns = 0; turns < (ring ? ranks : 1); ++turns) {
      int64_t seen = 0;
      for (size_t q = 0; q < cut.intervals(); ++q) {
        for (int64_t i = start(r, q, 0); i < std::min(length, start(r, q, 0) + size(q)); ++i) {
          if (!ring) seen += i + 1;
          for (size_t k = 0; ring && k < cut.intervals(); ++k) {
            const int64_t first = start(r, k, turns);
            seen += std::clamp<int64_t>(i + 1 - first, 0, size(k));
          }
        }
      }
      pairs[static_cast<size_t>(r)].push_back(seen);
    }
  }
  return pairs;
}

double spread(const std::vector<std::vector<int64_t>>& pairs, size_t turn) {
  int64_t least = pairs[0][turn], most = least;
  for (const auto& of_rank : pairs) {
    least = std::min(least, of_rank[turn]);
    most = std::max(most, of_rank[turn]);
  }
  return static_cast<double>(most) / static_cast<double>(least);
}

TEST_CASE("balanced: ranks see as many pairs, in each turn of a ring") {
  for (const int64_t ranks : {2, 3, 4}) {
    INFO(ranks);
    const int64_t length = 240;
    CHECK(spread(visible_pairs(length, ranks, true, false), 0) < 1.05);
    // The last of n slices sees 2n - 1 times what the first one sees.
    CHECK(spread(visible_pairs(length, ranks, false, false), 0) >
          0.9 * static_cast<double>(2 * ranks - 1));
    const auto ring = visible_pairs(length, ranks, true, true);
    int64_t sum = 0;
    for (size_t turn = 0; turn < static_cast<size_t>(ranks); ++turn)
      CHECK(spread(ring, turn) < 1.05);
    for (const auto& of_rank : ring) {
      for (const int64_t seen : of_rank) sum += seen;
    }
    CHECK(sum == length * (length + 1) / 2);
  }
}

TEST_CASE("balanced: a rule that no op needs is refused", "[errors]") {
  const auto refused = [](const Sizes& sizes, const char* mesh, const char* layout,
                          const std::vector<std::string>& parts) {
    const Model model(sizes);
    expect_usage(parts, [&] {
      explain(model.g, {Mesh::parse(mesh), Layout::parse(layout), model.functions});
    });
  };
  refused({8, 8, false}, "a:2", "length:a*2",
          {"layout rule 'length:a*2': no op has more work towards the end of 'length'",
           "only causal attention without a window has, along its queries",
           "without '*2', or 'length?' if it may have no effect"});
  refused({8, 8, true}, "a:2", "heads:a*2",
          {"layout rule 'heads:a*2'", "'heads' of 2 is too short"});
  refused({5, 5, true}, "a:3", "length:a*2",
          {"layout rule 'length:a*2': '*2' is for a dim along which work grows",
           "'length' of 5 is too short for two intervals on each of 3 ranks; make it 6 or longer, "
           "or write the rule without '*2'"});
}

TEST_CASE("ring: no rank has all keys") {
  const auto peak = [](const std::string& layout) {
    nn::GptOptions o = small_gpt(DType::float32);
    o.length = 512;
    o.d_model = 16;
    o.heads = 4;
    o.batch = 1;
    Graph g;
    const nn::Model model = nn::gpt(g, o);
    const Explanation e =
        explain(g, {Mesh::parse("a:8"), Layout::parse(layout), {{"loss", {model.loss}, false}}});
    return e.memory.transient;
  };
  CHECK(peak(kRing) < peak("length:a"));
}

TEST_CASE("ring: a gpt trains alike with keys going round") {
  for (const DType dtype : {DType::float64, DType::float32}) {
    Cluster one = Cluster::threads(1);
    const GptOutcome plain = train_small_gpt(one, Mesh::parse("a:1"), "", dtype, 4);
    for (const auto& [mesh, layout] : std::vector<std::pair<std::string, std::string>>{
             {"a:2", kRing},
             {"a:4", kRing},
             {"data:2;a:3", "batch:data;length,memory_length:a"},
             {"a:2", "length:a*2"},
             {"a:3", "length:a*2"},
             {"a:2", "length,memory_length:a*2"},
             {"data:2;a:2", "batch:data;length,memory_length:a*2;@params d_model:data"},
             {"data:2;a:2", "heads,ff,vocab:data;length,memory_length:a;@state d_model:a"}}) {
      INFO(to_string(dtype) << " " << mesh << " " << layout);
      Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
      const GptOutcome split = train_small_gpt(ranks, Mesh::parse(mesh), layout, dtype, 4);
      for (size_t i = 0; i < plain.losses.size(); ++i)
        CHECK_THAT(split.losses[i], Catch::Matchers::WithinRel(
                                        plain.losses[i], dtype == DType::float64 ? 1e-12 : 1e-5));
    }
  }
}

TEST_CASE("ring: queries and keys of a bounded length go round as well") {
  struct Run {
    int64_t queries, keys;
  };
  const auto values = [](const char* mesh, const char* layout, bool causal, bool one_length,
                         const std::vector<Run>& runs) {
    Graph g;
    const Dim heads("heads", 2), d_head("d_head", 4);
    const Dim length = Dim::bounded("length", 10), memory = one_length
                                                                ? length.renamed("memory_length")
                                                                : Dim::bounded("memory_length", 13);
    std::vector<Tensor> in = {g.input("q", {heads, length, d_head}, DType::float64)};
    for (const char* name : {"k", "v"}) {
      in.push_back(one_length ? rename(g.input(name, {length, d_head}, DType::float64), "length",
                                       "memory_length")
                              : g.input(name, {memory, d_head}, DType::float64));
    }
    AttentionOptions options;
    options.causal = causal;
    const Tensor out = attention(in[0], in[1], in[2], {}, options).named("out");
    std::vector<Tensor> results = gradients(weighted(out), in);
    for (size_t i = 0; i < results.size(); ++i)
      results[i] = results[i].named(fmt::format("gradient{}", i));
    results.push_back(out);
    Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
    Session session(g, ranks, {Mesh::parse(mesh), Layout::parse(layout), {{"run", results}}});
    std::vector<Wholes> all;
    for (const Run& run : runs) {
      session.set_size("length", run.queries);
      if (!one_length) session.set_size("memory_length", run.keys);
      for (const char* name : {"q", "k", "v"}) {
        const Array shape = session.shape_of(name);
        Array array(shape.dtype, shape.dims, shape.sizes);
        for (int64_t i = 0; i < array.elements(); ++i)
          array.data<double>()[i] = std::sin(1.7 * static_cast<double>(i) + name[0]);
        session.feed(name, array);
      }
      session.run("run");
      Wholes& found = all.emplace_back();
      for (const Tensor& t : results) found[t.name()] = whole_of(session.fetch(t.name()));
    }
    return all;
  };
  const std::vector<Run> runs = {{10, 13}, {7, 4}, {1, 1}, {9, 12}, {2, 13}};
  for (const bool one_length : {false, true}) {
    for (const bool causal : {true, false}) {
      const std::vector<Wholes> whole = values("a:1", "", causal, one_length, runs);
      for (const auto& [mesh, layout] : std::vector<std::pair<const char*, const char*>>{
               {"a:2", kRing},
               {"a:3", kRing},
               {"b:2;a:2", "length,memory_length:b+a"},
               {"b:2;a:2", "heads:b;length,memory_length:a"},
               {"a:2", "length:a"},
               {"a:2", kBalanced},
               {"a:3", kBalanced},
               {"a:2", kBalancedRing},
               {"a:3", kBalancedRing},
               {"a:2", "memory_length:a"}}) {
        const std::vector<Wholes> split = values(mesh, layout, causal, one_length, runs);
        for (size_t i = 0; i < runs.size(); ++i) {
          INFO(runs[i].queries << " queries, " << runs[i].keys << " keys, causal " << causal
                               << ", one length " << one_length << ", " << mesh << ", " << layout);
          CHECK(difference(split[i], whole[i]) < 1e-13);
        }
      }
    }
  }
}

}  // namespace TESSERA_FILE
