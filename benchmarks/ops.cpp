// bench_ops [--threads 1] [--runs 15] [--only WORD] [--profile] [--device cpu|cuda] [--dtype
// float32|bfloat16]: milliseconds of single ops, alone
// and with their gradients, as one line of JSON each: {"op": ..., "ms": median of the runs after
// two and 0.3 s, by when the processor and its caches are awake}. The same in PyTorch:
// peers/ops_pytorch.py; by turns: peers/compare_ops.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <chrono>
#include <cmath>
#include <functional>

#include "tessera/tessera.h"

using namespace tessera;

namespace {

using Inputs = std::vector<Tensor>;

struct Case {
  std::string name;
  std::vector<Shape> shapes;
  std::function<Tensor(const Inputs&)> build;
  bool gradient = false;  ///< too, of the sum of the result times a fed tensor, by all inputs
};

Tensor heads_attention(const Inputs& x) {
  AttentionOptions o;
  o.causal = true;
  return attention(x[0], x[1], x[2], {}, o);
}

Tensor packed_attention(const Inputs& x) {
  AttentionOptions o;
  o.causal = true;
  const Dim& length = x[0].dim("length");  // four documents
  Graph& g = x[0].graph();
  o.segments = constant(g, 1, DType::int32, Shape{length});
  for (int64_t i = 1; i < 4; ++i) {
    const Tensor begin = constant(g, static_cast<double>(i * length.size / 4), DType::int32);
    o.segments = o.segments + cast(iota(g, length) >= begin, DType::int32);
  }
  return attention(x[0], x[1], x[2], {}, o);
}
Tensor window_attention(const Inputs& x) {
  AttentionOptions o;
  o.causal = true;
  o.window = 512;
  return attention(x[0], x[1], x[2], {}, o);
}
Tensor capped_attention(const Inputs& x) {
  AttentionOptions o;
  o.causal = true;
  o.soft_cap = 20;
  return attention(x[0], x[1], x[2], {}, o);
}
/// ALiBi: 2^(-8 (h + 1) / heads) of head h.
Tensor sloped_attention(const Inputs& x) {
  AttentionOptions o;
  o.causal = true;
  const Dim& heads = x[0].dim("heads");
  const Tensor head = iota(x[0].graph(), heads, DType::float32) + 1.0;
  o.slopes = exp(head * (-8 * std::log(2.0) / static_cast<double>(heads.size)));
  return attention(x[0], x[1], x[2], {}, o);
}

/// Biases of T5: by distance in the kernel, or as a tensor of queries by keys.
Tensor distance_attention(const Inputs& x) {
  AttentionOptions o;
  o.by_distance = x[3];
  return attention(x[0], x[1], x[2], {}, o);
}
Tensor biased_attention(const Inputs& x) {
  nn::BiasedOptions o;
  Graph& g = x[0].graph();
  const Tensor behind = iota(g, x[0].dim("length")) - iota(g, x[1].dim("memory_length"));
  o.bias = gather(x[3], clip(behind, -128, 128) + 128.0, "entries");
  return nn::biased_attention(x[0], x[1], x[2], {}, o);
}
/// Dropout in the kernel; a mask that hides nothing makes it plain ops.
Tensor dropped_attention(const Inputs& x) {
  AttentionOptions o;
  o.dropout = 0.1;
  return attention(x[0], x[1], x[2], {}, o);
}
Tensor dropped_as_ops(const Inputs& x) {
  AttentionOptions o;
  o.dropout = 0.1;
  const Tensor all = constant(x[0].graph(), 1, DType::bool_, Shape{x[0].dim("length")});
  return attention(x[0], x[1], x[2], all, o);
}
Tensor plain_attention(const Inputs& x) { return attention(x[0], x[1], x[2]); }

Tensor convolution(const Inputs& x) { return conv(x[0], x[1], {{{"height"}, {"width"}}}); }
Tensor large_filter(const Inputs& x) { return conv(x[0], x[1], {{{"side"}, {"across"}}}); }
Tensor norm(const Inputs& x) { return layer_norm(x[0], "cols", x[1], x[2]); }
Tensor soft(const Inputs& x) { return softmax(x[0], "cols"); }
Tensor activated(const Inputs& x) { return gelu(x[0] + x[1]); }

/// Rows of 32 experts, of which a token takes 8: 256 for each. Tokens scatter them.
Tensor grouped(const Inputs& x) {
  Graph& g = x[0].graph();
  const Dim &tokens = x[0].dim("tokens"), &experts = x[1].dim("experts");
  const Dim choices("choices", 8);
  const Tensor row = iota(g, tokens) * 8.0 + iota(g, choices) * 5.0;
  const Tensor index = mod(row, constant(g, static_cast<double>(experts.size), DType::int32));
  return grouped_dot(x[0], x[1], index, "experts", {tokens, choices, x[1].dim("ff")});
}
Tensor ungrouped(const Inputs& x) {
  return einsum({x[0], x[1]}, {x[0].dim("rows"), x[1].dim("ff")});
}

/// Of a GPU: as much work as fills one, and no convolution.
std::vector<Case> cases(bool gpu) {
  const Dim batch("batch", gpu ? 16 : 8), length("length", gpu ? 1024 : 256),
      memory("memory_length", length.size), heads("heads", gpu ? 12 : 8), key("d_head", 64);
  const Dim model("d_model", gpu ? 768 : 512), ff("ff", gpu ? 3072 : 2048);
  const Dim rows("rows", gpu ? 16384 : 2048), cols("cols", 1024), many("many", 4096);
  const Dim images("images", 8), in("in", 64), out("out", 64), many_images("many_images", 64),
      filters("filters", 16), more_filters("more_filters", 16);
  const Shape query{batch, heads, length, key}, keys{batch, heads, memory, key};
  const std::vector<Shape> attended = {query, keys, keys}, table = {{rows, cols}},
                           normed = {{rows, cols}, {cols}, {cols}},
                           factors = {{batch, length, model}, {model, ff}},
                           biased = {{rows, cols}, {cols}};
  const std::vector<Shape> image = {{images, Dim("height", 56), Dim("width", 56), in},
                                    {Dim("filter_height", 3), Dim("filter_width", 3), in, out}};
  const std::vector<Shape> small_image = {
      {many_images, Dim("side", 28), Dim("across", 28), filters},
      {Dim("filter_side", 9), Dim("filter_across", 9), filters, more_filters}};
  const auto product = [=](const Inputs& x) { return einsum({x[0], x[1]}, {batch, length, ff}); };
  const auto scores = [=](const Inputs& x) {
    return einsum({x[0], x[1]}, {batch, heads, length, memory});
  };
  const auto largest = [](const Inputs& x) { return top_k(x[0], "many", Dim("k", 8)).values; };
  std::vector<Case> all = {{"einsum", factors, product},
                           {"einsum, gradients", factors, product, true},
                           {"einsum in batches", {query, keys}, scores},
                           {"softmax", table, soft},
                           {"softmax, gradients", table, soft, true},
                           {"layer_norm", normed, norm},
                           {"layer_norm, gradients", normed, norm, true},
                           {"attention", attended, heads_attention},
                           {"attention, gradients", attended, heads_attention, true},
                           {"top_k", {{rows, many}}, largest}};
  if (gpu) {
    all.push_back({"bias and gelu", biased, activated});
    return all;
  }
  const auto heads_of = [&](int64_t n) {
    const Shape own{Dim("heads", 4), Dim("length", n), key},
        theirs{Dim("heads", 4), Dim("memory_length", n), key};
    return std::vector<Shape>{own, theirs, theirs};
  };
  for (const bool gradient : {false, true}) {
    const std::string end = gradient ? ", gradients" : "";
    all.push_back({"structure: causal, 4096" + end, heads_of(4096), heads_attention, gradient});
    all.push_back(
        {"structure: 4 documents, 4096" + end, heads_of(4096), packed_attention, gradient});
    all.push_back({"structure: soft cap, 4096" + end, heads_of(4096), capped_attention, gradient});
    all.push_back({"structure: slopes, 4096" + end, heads_of(4096), sloped_attention, gradient});
    all.push_back({"inside: nothing, 2048" + end, heads_of(2048), plain_attention, gradient});
    std::vector<Shape> with_biases = heads_of(2048);
    with_biases.push_back({Dim("entries", 257), Dim("heads", 4)});
    all.push_back({"inside: biases, 2048" + end, with_biases, distance_attention, gradient});
    all.push_back({"outside: biases, 2048" + end, with_biases, biased_attention, gradient});
    all.push_back({"inside: dropout, 2048" + end, heads_of(2048), dropped_attention, gradient});
    all.push_back({"outside: dropout, 2048" + end, heads_of(2048), dropped_as_ops, gradient});
    all.push_back({"structure: causal, 8192" + end, heads_of(8192), heads_attention, gradient});
    all.push_back(
        {"structure: window 512, 8192" + end, heads_of(8192), window_attention, gradient});
  }
  for (const int64_t width : {512, 1024}) {
    const Dim wide("d_model", width), hidden("ff", width);
    const std::string of = fmt::format(", width {}", width);
    const Shape tokens{Dim("tokens", 1024), wide}, matrices{Dim("experts", 32), wide, hidden},
        all_rows{Dim("rows", 8192), wide}, matrix{wide, hidden};
    for (const bool gradient : {false, true}) {
      const std::string end = of + (gradient ? ", gradients" : "");
      all.push_back({"experts: 32 of 256 rows" + end, {tokens, matrices}, grouped, gradient});
      all.push_back({"experts: one product" + end, {all_rows, matrix}, ungrouped, gradient});
    }
  }
  all.insert(all.begin() + 3, {{"conv", image, convolution},
                               {"conv, gradients", image, convolution, true},
                               {"conv 9x9", small_image, large_filter},
                               {"conv 9x9, gradients", small_image, large_filter, true}});
  return all;
}

/// sin(0.37 (i i mod 10007)), which repeats itself.
Array filled(const Tensor& t) {
  constexpr int64_t kPeriod = 10007;
  std::vector<float> wave;
  for (int64_t i = 0; i < kPeriod; ++i)
    wave.push_back(static_cast<float>(std::sin(0.37 * static_cast<double>(i * i % kPeriod))));
  std::vector<int64_t> sizes;
  for (const Dim& d : t.shape()) sizes.push_back(d.size);
  Array array(t.dtype(), t.shape().names(), sizes);
  for (int64_t i = 0; i < array.elements(); ++i) {
    const float x = wave[static_cast<size_t>(i % kPeriod)];
    if (t.dtype() == DType::bfloat16)
      array.data<uint16_t>()[i] = static_cast<uint16_t>(std::bit_cast<uint32_t>(x) >> 16);
    else
      array.data<float>()[i] = x;
  }
  return array;
}

struct How {
  int threads = 1, runs = 15;
  bool profile = false;
  std::string device = "cpu";
  DType dtype = DType::float32;
};

double median_ms(const Case& c, const How& how) {
  Graph g;
  Inputs inputs;
  for (const Shape& shape : c.shapes)
    inputs.push_back(g.input(fmt::format("x{}", inputs.size()), shape, how.dtype));
  const Tensor y = c.build(inputs);
  Inputs outputs = {y}, fed = inputs;
  if (c.gradient) {
    fed.push_back(g.input("weights", y.shape(), how.dtype));
    for (const Tensor& t : gradients(sum_all(y * fed.back()), inputs)) outputs.push_back(t);
  }
  for (size_t i = 0; i < outputs.size(); ++i) outputs[i].named(fmt::format("y{}", i));
  Cluster cluster = Cluster::threads(1);
  CompileOptions options{
      Mesh::parse("one:1"), Layout::parse(""), {{"f", outputs, false}}, 1, how.threads};
  options.profile = how.profile;
  options.device = how.device;
  Session session(g, cluster, options);
  for (const Tensor& t : fed) session.feed(t.name(), filled(t));
  using Clock = std::chrono::steady_clock;
  std::vector<double> ms;
  const auto first = Clock::now();
  for (int warm = 0; std::ssize(ms) < how.runs; ++warm) {
    const auto start = Clock::now();
    session.run("f");
    const auto end = Clock::now();
    if (warm >= 2 && start - first > std::chrono::milliseconds(300))
      ms.push_back(std::chrono::duration<double, std::milli>(end - start).count());
  }
  for (const StepTime& row : session.profile()) {
    fmt::print(stderr, "{:9.1f} us {:12} {}\n", row.seconds / static_cast<double>(row.runs) * 1e6,
               row.kernel, row.name);
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  How how;
  std::string only, dtype = "float32";
  CLI::App app("milliseconds of single ops");
  app.add_option("--threads", how.threads);
  app.add_option("--runs", how.runs);
  app.add_option("--only", only);
  app.add_flag("--profile", how.profile, "prints what each step takes");
  app.add_option("--device", how.device, "cpu, or cuda with larger operands")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  app.add_option("--dtype", dtype)->check(CLI::IsMember({"float32", "bfloat16"}));
  CLI11_PARSE(app, argc, argv);
  if (dtype == "bfloat16") how.dtype = DType::bfloat16;
  try {
    for (const Case& c : cases(how.device == "cuda")) {
      if (c.name.find(only) == std::string::npos) continue;
      fmt::print(R"({{"op": "{}", "ms": {:.4f}}})"
                 "\n",
                 c.name, median_ms(c, how));
      std::fflush(stdout);
    }
  } catch (const Error& e) {
    fmt::print(stderr, "bench_ops: {}\n", e.what());
    return 1;
  }
  return 0;
}
