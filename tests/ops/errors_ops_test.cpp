// The messages of shapes, graphs and ops: one test each. All name the op, the culprit, the numbers
// and the caller's line.
#include <fmt/format.h>

#include "support/expect_error.h"
#include "tessera/ragged.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

const Dim kA("a", 4), kB("b", 6), kC("c", 3);
const char* kHere = "(errors_ops_test.cpp:";

struct Inputs {
  Graph g;
  Tensor x = g.input("x", {kA, kB}, DType::float32);
  Tensor y = g.input("y", {kB, kC}, DType::float32);
  Tensor ids = g.input("ids", {kA}, DType::int32);
};

TEST_CASE("shape errors", "[errors]") {
  expect_usage({"dim 'a' occurs twice", "[a=4, a=4]"}, [] { Shape({kA, kA}); });
  expect_usage({"dim 'a' has size 0", "at least 1"}, [] { Shape({Dim("a", 0)}); });
  expect_usage({"dim 0", "empty name"}, [] { Shape({Dim("", 2)}); });
  expect_usage({"[alpha=4]", "no dim 'alhpa'", "did you mean 'alpha'?"},
               [] { Shape({Dim("alpha", 4)}).dim("alhpa"); });
  expect_usage({"empty Tensor"}, [] { relu(Tensor()); });
}

TEST_CASE("a name stands for one tensor that is fed or stored", "[errors]") {
  Inputs m;
  const std::initializer_list<std::string> x = {
      "[input] 'x' is declared at errors_ops_test.cpp:", "and again at errors_ops_test.cpp:",
      "a Scope of its own"};
  expect_usage(x, [&] { m.g.input("x", {kA}, DType::float32); });
  expect_usage(x, [&] { m.g.parameter("x", {kA}, nn::zeros()); });
  expect_usage(x, [&] {
    const MicrobatchScope part(m.g, "a", 2, 0);
    m.g.input("x", {kA}, DType::float32);
  });
  const Scope scope(m.g, "layer");
  m.g.input("x", {kA}, DType::float32);
  m.g.parameter("w", {kA}, nn::zeros());
  for (const bool trained : {true, false})
    expect_usage({"[parameter] 'layer.w' is declared at"}, [&] {
      trained ? m.g.parameter("w", {kB}, nn::zeros()) : m.g.state("w", {kB}, nn::zeros());
    });
  const Tensor y = relu(m.x).named("y");
  CHECK(y.named("y").name() == "layer.y");  // its own
  for (const char* taken : {"w", "y"})
    expect_usage(
        {"[named] 'layer." + std::string(taken) + "' is the name of another tensor already",
         "made at errors_ops_test.cpp:", kHere},
        [&] { relu(m.x).named(taken); });
  expect_usage(
      {"[named] 'x' is an input, which is fed by its name", "identity(x).named(\"z\")", kHere},
      [&] { m.x.named("z"); });
  std::vector<std::string> names;
  for (int i = 0; i < 4; ++i) names.push_back(exp(m.x).name());
  CHECK(names ==
        std::vector<std::string>{"layer.exp", "layer.exp_1", "layer.exp_2", "layer.exp_3"});
  for (int64_t i = 0; i < 2; ++i) {  // copies are told apart
    const MicrobatchScope part(m.g, "a", 2, i);
    CHECK(relu(m.x).named("part").name() == (i == 0 ? "layer.part" : "layer.part_1"));
  }
}

TEST_CASE("einsum errors", "[errors]") {
  Inputs m;
  Tensor wide = m.g.input("wide", {Dim("b", 7)}, DType::float32);
  expect_usage({"[einsum] dim 'b' is 6 in operand 0 but 7 in operand 1", kHere}, [&] {
    einsum({m.x, wide}, {kA});
  });
  expect_usage({"[einsum] dim 'a' is 4 in operand 0 but 5 in the result", kHere}, [&] {
    einsum({m.x, m.y}, {Dim("a", 5), kC});
  });
  expect_usage({"[einsum] operand 1 is int32 but operand 0 is float32", "cast()", kHere}, [&] {
    einsum({m.x, m.ids}, {kB});
  });
  Tensor z = m.g.input("zz", {Dim("d", 3)}, DType::float32);
  expect_usage({"[einsum] dim 'a' is in operand 0 [a=4, b=6] alone",
                "result [c=", "reduce_sum(x, \"a\")", kHere},
               [&] {
                 einsum({m.x, m.y}, {kC});
               });
  expect_usage(
      {"[einsum] operand 0 [a=4, b=6] shares no dim with the others", "outer product", kHere}, [&] {
        einsum({m.x, z});
      });
  CHECK(einsum({m.x, z}, {kA, kB, Dim("d", 3)}).shape().rank() == 3);
  expect_usage({"[einsum] there are no operands", kHere},
               [&] { einsum(std::vector<Tensor>{}, {kB}); });
  Graph other;
  Tensor foreign = other.input("z", {kA}, DType::float32);
  expect_usage({"another graph", kHere}, [&] { add(m.x, foreign); });
}

TEST_CASE("pointwise errors", "[errors]") {
  Inputs m;
  expect_usage({"[add] operand 1 is int32 but operand 0 is float32", kHere}, [&] { m.x + m.ids; });
  Tensor other = m.g.input("other", {Dim("a", 5)}, DType::float32);
  expect_usage({"[mul] dim 'a' is 4 in operand 0 but 5 in operand 1", kHere}, [&] { m.x* other; });
  expect_usage({"[exp] the operand is int32; it must be floating", kHere}, [&] { exp(m.ids); });
  expect_usage({"[where] the condition is float32; it must be bool", kHere},
               [&] { where(m.x, m.x, m.x); });
  Tensor yes = greater(m.x, m.x);
  expect_usage({"[where] the choices are float32 and int32", kHere},
               [&] { where(yes, m.x, m.ids); });
  expect_usage({"[logical_not] the operand is float32; it must be bool", kHere},
               [&] { logical_not(m.x); });
  expect_usage({"[clip] lo 2 is above hi 1", kHere}, [&] { clip(m.x, 2, 1); });
  expect_usage({"[dropout] rate 1 is not in [0, 1)", kHere}, [&] { dropout(m.x, 1); });
  expect_usage({"[random_uniform] hi 0 is below lo 1", kHere},
               [&] { random_uniform(m.g, {kA}, 1, 0); });
}

TEST_CASE("fft and windows errors", "[errors]") {
  Inputs m;
  expect_usage({"[fft] the operand is int32; it must be floating", kHere}, [&] {
    fft({m.ids, Tensor()}, "a");
  });
  expect_usage({"[fft]", "no dim 'q'", kHere}, [&] { fft({m.x, Tensor()}, "q"); });
  expect_usage({"[fft] the parts are float32 [a=4, b=6] and float32 [b=6, c=3]; they must agree"},
               [&] {
                 fft({m.x, m.y}, "b");
               });
  expect_usage({"[windows] x has a dim 'b' already", kHere},
               [&] { windows(m.x, "a", Dim("b", 2)); });
  expect_usage({"[windows] a window of 5 does not fit into dim 'a' of size 4", kHere},
               [&] { windows(m.x, "a", Dim("w", 5)); });
  expect_usage({"[windows] padding of -1 and 0 around dim 'a'; neither is negative"}, [&] {
    windows(m.x, "a", Dim("w", 2), {1, 1, -1});
  });
}

TEST_CASE("halo_exchange errors", "[errors]") {
  Inputs m;
  expect_usage({"[halo_exchange] -1 before and 2 after dim 'b'; neither is negative", kHere},
               [&] { halo_exchange(m.x, "a", "b", -1, 2); });
  expect_usage({"[halo_exchange] dim 'a' is both the blocks and what is in one", kHere},
               [&] { halo_exchange(m.x, "a", "a", 1, 2); });
  expect_usage({"[halo_exchange]", "no dim 'q'", kHere},
               [&] { halo_exchange(m.x, "q", "b", 1, 2); });
}

TEST_CASE("reduction errors", "[errors]") {
  Inputs m;
  expect_usage({"[reduce_sum]", "'q' is not in [a=4, b=6]", kHere}, [&] { reduce_sum(m.x, "q"); });
  expect_usage({"'b' is given twice", kHere}, [&] { reduce_max(m.x, {"b", "b"}); });
  expect_usage({"[reduce_any] the operand is float32; it must be bool", kHere},
               [&] { reduce_any(m.x, "b"); });
  expect_usage({"[softmax]", "'q' is not in", kHere}, [&] { softmax(m.x, "q"); });
  expect_usage({"[softmax] the operand is int32; it must be floating", kHere},
               [&] { softmax(m.ids, "a"); });
  expect_usage({"[argmax]", "'q' is not in", kHere}, [&] { argmax(m.x, "q"); });
  expect_usage({"[cumsum]", "'q' is not in", kHere}, [&] { cumsum(m.x, "q"); });
  expect_usage({"[linear_scan]", "'q' is not in", kHere}, [&] { linear_scan(m.x, m.x, "q"); });
  expect_usage({"[linear_scan] x is float32 and decay int32; both are of one floating type", kHere},
               [&] { linear_scan(m.x, m.ids, "a"); });
  expect_usage({"[top_k] k = 7 is larger than dim 'b' of size 6", kHere},
               [&] { top_k(m.x, "b", Dim("k", 7)); });
  expect_usage({"dim 'a' occurs twice", kHere}, [&] { top_k(m.x, "b", Dim("a", 2)); });
}

TEST_CASE("errors of counted rows", "[errors]") {
  Graph g;
  const Dim a("a", 5), b("b", 3);
  Tensor x = g.input("x", {a, b}, DType::float32), counts = g.input("k", {a}, DType::int32);
  const auto error = [&](const std::string& word, Tensor k, const std::string& dim,
                         double used = 1) {
    expect_usage({word, kHere}, [&] { ragged(x, k, dim, used); });
  };
  error("[ragged] the counts are float32; they are int32", g.input("f", {a}, DType::float32), "b");
  error("[ragged] row dim 'c' is not in", counts, "c");
  error("[ragged] the counts [a=5] have the dim 'a', whose elements they count", counts, "a");
  error("[ragged] dim 'n' of the counts [n=2] is not in x [a=5, b=3]",
        g.input("n", {Dim("n", 2)}, DType::int32), "b");
  error("[ragged] used 0; it is a share", counts, "b", 0);
  expect_usage({"[within_bound] counts of int32 within -1; counts are int32, and a bound is 0"},
               [&] { within_bound(counts, -1); });
  // A bound of the model's own is not raised.
  const Tensor kept = within_bound(counts, 3).named("kept");
  Cluster ranks = Cluster::threads(2);
  Session session(g, ranks, {Mesh::parse("m:2"), Layout::parse("a:m"), {{"f", {kept}, false}}});
  Array given(DType::int32, {"a"}, {5});
  for (const int32_t most : {3, 4}) {
    given.data<int32_t>()[4] = most;
    session.feed("k", given);
    if (most == 3) session.run("f");
  }
  expect_usage({"[within_bound] a count exceeds its bound of 3; give a larger one",
                "(in the part of rank 1)", "nothing was stored", kHere},
               [&] { session.run("f"); });
}

TEST_CASE("errors of grouped matmuls", "[errors]") {
  Graph g;
  const Dim a("a", 5), b("b", 3), c("c", 2), f("f", 4), n("n", 6);
  int inputs = 0;
  const auto real = [&](const Shape& shape, DType dtype = DType::float32) {
    return g.input(fmt::format("in{}", inputs++), shape, dtype);
  };
  Tensor x = real({a, b}), w = real({n, b, f}), i = real({a}, DType::int32);
  const auto error = [](std::initializer_list<std::string> words, Tensor rows, Tensor matrices,
                        Tensor indices, const Shape& out, double used = 1) {
    expect_usage(words, [&] { grouped_dot(rows, matrices, indices, "n", out, used); });
  };
  error({"[grouped_dot] the rows are int32; cast()"}, real({a, b}, DType::int32), w, i, {a, f});
  error({"[grouped_dot] operands are float32 and float64"}, x, real({n, b, f}, DType::float64), i,
        {a, f});
  error({"[grouped_dot] the indices are float32"}, x, w, real({a}), {a, f});
  error({"[grouped_dot] indexed dim 'n' is not in"}, x, real({b, f}), i, {a, f});
  error({"[grouped_dot] the indexed dim 'n' is also in [a=5, n=6], which are rows"}, x, w, i,
        {a, n});
  error({"[grouped_dot] dim 'f' is 3 in the result and 4 in the operands"}, x, w, i,
        {a, Dim("f", 3)});
  error({"[grouped_dot] dim 'c' of the indices [c=2] is not in the rows"}, x, w,
        real({c}, DType::int32), {a, f});
  error({"[grouped_dot] dim 'f' of the matrices [b=3, f=4] is not in the rows"}, x, w, i, {a});
  error({"[grouped_dot] dim 'c' of the rows [a=5, b=3, c=2] is not in what they are"},
        real({a, b, c}), w, i, {a, f});
  error({"[grouped_dot] used 0; it is a share"}, x, w, i, {a, f}, 0);
  expect_usage({"[grouped_outer] indexed dim 'n' is not in", kHere}, [&] {
    grouped_outer(x, real({a, f}), i, "n", {b, f});
  });
  Tensor gates = real({a, c}), chosen = real({a, c}, DType::int32), down = real({n, f, b});
  const auto layer = [&](const std::string& word, Tensor indices, const nn::Experts& weights) {
    expect_usage({word, kHere}, [&] { nn::experts(x, indices, gates, weights); });
  };
  const nn::Experts fine = {{w}, {"relu"}, down, "n", "c"};
  nn::Experts two = fine, other = fine, elsewhere = fine;
  two.activations = {"silu", "linear"};
  other.down = real({n, Dim("f", 3), b});
  elsewhere.choices = "b";
  layer("[experts] 1 matrices 'up' and 2 activations", chosen, two);
  layer("[experts] gates [a=5, c=2] of indices [a=5]", i, fine);
  layer("[experts] a matrix is [n=6, b=3, f=4] beside x", chosen, other);
  layer("[experts] 'b' is a dim of the indices", chosen, elsewhere);
  other.down = real({n, f});
  layer("[experts] a matrix is [n=6, f=4] beside x", chosen, other);
}

TEST_CASE("indexing errors", "[errors]") {
  Inputs m;
  Tensor table = m.g.input("table", {Dim("vocab", 9), kC}, DType::float32);
  expect_usage({"[gather] the indices are float32; they must be int32 or int64", kHere},
               [&] { gather(table, m.x, "vocab"); });
  expect_usage({"[gather] indexed dim 'vocb' is not in", "did you mean 'vocab'?", kHere},
               [&] { gather(table, m.ids, "vocb"); });
  Tensor clash = m.g.input("clash", {Dim("vocab", 9)}, DType::int32);
  expect_usage({"[gather] the indexed dim 'vocab' is also in the indices", "rename", kHere},
               [&] { gather(table, clash, "vocab"); });
  Tensor updates = m.g.input("updates", {kA, kC}, DType::float32);
  expect_usage({"[scatter_add] indexed dim 'vocb' is not in", kHere}, [&] {
    scatter_add(m.ids, updates, {Dim("vocab", 9), kC}, "vocb");
  });
  expect_usage({"[scatter_add] dim 'b' of the result is not in the updates", kHere}, [&] {
    scatter_add(m.ids, updates, {Dim("vocab", 9), kB}, "vocab");
  });
  expect_usage({"[scatter_add] dim 'a' of the indices is not in the updates", kHere}, [&] {
    scatter_add(m.ids, m.y, {Dim("vocab", 9), kC}, "vocab");
  });
}

TEST_CASE("loss errors", "[errors]") {
  Inputs m;
  expect_usage({"[cross_entropy]", "labels are [a=4]", "[b=6]", kHere},
               [&] { cross_entropy(m.y, m.ids, "c"); });
  expect_usage({"[cross_entropy] the labels are bool", kHere},
               [&] { cross_entropy(m.x, greater(m.x, m.x), "b"); });
  expect_usage({"[cross_entropy]", "'q' is not in", kHere},
               [&] { cross_entropy(m.x, m.ids, "q"); });
  expect_usage({"[cross_entropy] the logits are int32", kHere},
               [&] { cross_entropy(m.ids, m.ids, "a"); });
}

TEST_CASE("norm and attention errors", "[errors]") {
  Inputs m;
  Tensor scale = m.g.input("scale", {kC}, DType::float32);
  expect_usage({"[layer_norm] the scale is [c=3]; it must have the one dim 'b'", kHere},
               [&] { layer_norm(m.x, "b", scale, scale); });
  expect_usage({"[batch_norm] scale [c=3] and bias [c=3] of x [a=4, b=6]; they have its dims but "
                "those normalized, [b=6]",
                kHere},
               [&] { batch_normed(m.x, scale, scale, "a"); });
  expect_usage({"[attention]", "query dim 'length' is not in", kHere},
               [&] { attention(m.x, m.x, m.x); });
  const Dim length("length", 4), memory("memory_length", 6), d_head("d_head", 2);
  const Tensor q = m.g.input("q", {kA, length, d_head}, DType::float32),
               k = m.g.input("k", {kA, memory, d_head}, DType::float32),
               at = m.g.input("at", {length}, DType::int32), zero = constant(m.g, 0, DType::int32);
  expect_usage({"[attention_part] query_start has dim 'length'; it has some dims of the query "
                "[a=4, length=4, d_head=2] besides 'length' and 'd_head'",
                kHere},
               [&] { attention_part(q, k, k, at, zero, 6); });
  expect_usage({"[attention_part] key_start is float32; it must be int32", kHere},
               [&] { attention_part(q, k, k, zero, constant(m.g, 0, DType::float32), 6); });
  AttentionOptions dropout;
  dropout.dropout = 0.1;
  expect_usage({"[attention_part] there is no dropout"},
               [&] { attention_part(q, k, k, zero, zero, 6, dropout); });
}

TEST_CASE("slice, pad, split, concat and stack errors", "[errors]") {
  Inputs m;
  expect_usage({"[slice] elements [3, 8) are not within dim 'b' of size 6", kHere},
               [&] { slice(m.x, "b", 3, 5); });
  expect_usage({"[slice]", "no dim 'q'", kHere}, [&] { slice(m.x, "q", 0, 1); });
  expect_usage({"[pad] -1 before and 0 after dim 'b'", kHere}, [&] { pad(m.x, "b", -1, 0); });
  expect_usage({"[shift]", "no dim 'q'", kHere}, [&] { shift(m.x, "q", 1); });
  expect_usage({"[split] the sizes add up to 5 but dim 'b' has 6", kHere}, [&] {
    split(m.x, "b", {2, 3});
  });
  expect_usage({"[concat] there are no operands", kHere}, [&] { concat({}, "b"); });
  expect_usage({"[concat] operands [a=4, b=6] and [b=6, c=3] differ in more than dim 'b'", kHere},
               [&] {
                 concat({m.x, m.y}, "b");
               });
  expect_usage({"[concat]", "no dim 'q'", kHere}, [&] { concat({m.x, m.x}, "q"); });
  expect_usage({"[concat] operands are float32 and int32", kHere}, [&] {
    concat({reduce_sum(m.x, "b"), m.ids}, "a");
  });
  expect_usage({"[stack] operands [a=4, b=6] and [b=6, c=3] differ", kHere}, [&] {
    stack({m.x, m.y}, "s");
  });
  expect_usage({"[stack] dim 'a' occurs twice", kHere}, [&] { stack({m.x, m.x}, "a"); });
  expect_usage({"[unstack]", "no dim 'q'", kHere}, [&] { unstack(m.x, "q"); });
}

TEST_CASE("dims and shapes: op errors", "[errors]") {
  Inputs m;
  expect_usage({"[reshape] [a=4, b=6] has 24 elements but [n=25] has 25", kHere},
               [&] { reshape(m.x, {Dim("n", 25)}); });
  expect_usage({"[transpose] [a=4, b=6] and [a=4] do not have the same dims", kHere},
               [&] { transpose(m.x, {kA}); });
  expect_usage({"[broadcast] dim 'b' of [a=4, b=6] is not in the result [a=4]", kHere},
               [&] { broadcast(m.x, {kA}); });
  expect_usage({"[rename]", "no dim 'q'", kHere}, [&] { rename(m.x, "q", "r"); });
  expect_usage({"[rename] dim 'b' occurs twice", kHere}, [&] { rename(m.x, "a", "b"); });
  expect_usage({"no dim 'q'"}, [&] { m.x.prefer("q"); });
}

TEST_CASE("convolution and pooling errors", "[errors]") {
  Graph g;
  Tensor x = g.input("x", {Dim("n", 2), Dim("height", 5), Dim("width", 5)}, DType::float32);
  Tensor f = g.input("f", {Dim("filter_height", 7), Dim("filter_width", 7)}, DType::float32);
  Conv2dOptions o;
  o.same = false;
  expect_usage({"[conv2d] a window of 7 does not fit into dim 'height' of size 5", kHere},
               [&] { conv2d(x, f, o); });
  o.stride = 0;
  expect_usage({"[conv2d]", "stride 0", kHere}, [&] { conv2d(x, f, o); });
  expect_usage({"[conv2d]", "no dim 'filter_height'", kHere}, [&] { conv2d(x, x); });
  PoolOptions p;
  p.dims[0].dim = "hight";
  expect_usage({"[max_pool]", "no dim 'hight'", "did you mean 'height'?", kHere},
               [&] { max_pool(x, p); });
  PoolOptions zero;
  zero.dims[0].window = 0;
  expect_usage({"[max_pool]", "window of 0 with stride 0", kHere}, [&] { max_pool(x, zero); });
}

TEST_CASE("general convolution errors", "[errors]") {
  Graph g;
  const Dim in("in", 4), height("height", 5);
  Tensor x = g.input("x", {Dim("n", 2), height, in}, DType::float32);
  Tensor f = g.input("f", {Dim("filter_height", 3), in, Dim("out", 2)}, DType::float32);
  auto fails = [&](const std::vector<std::string>& parts, ConvDim dim, Padding padding,
                   std::vector<std::string> groups = {}) {
    std::vector<std::string> all = parts;
    all.insert(all.end(), {"[conv]", kHere});
    expect_usage(all, [&] { conv(x, f, {{dim}, padding, groups}); });
  };
  fails({"no dim 'hight'", "did you mean 'height'?"}, {"hight", "filter_height"}, Padding::same);
  fails({"no dim 'filters'"}, {"height", "filters"}, Padding::same);
  fails({"dilation 0 along dim 'height'; it is at least 1"}, {"height", "", 1, 0}, Padding::same);
  fails({"a window of 3 with stride -1"}, {"height", "", -1}, Padding::same);
  fails({"padding of -1 and 0 around dim 'height'; neither is negative"},
        {"height", "", 1, 1, -1, 0}, Padding::given);
  fails({"padding of 1 and 1 around dim 'height' needs Padding::given"}, {"height", "", 1, 1, 1, 1},
        Padding::valid);
  fails({"a window of 3 with dilation 4 does not fit into dim 'height' of size 5 padded to 8"},
        {"height", "", 1, 4, 1, 2}, Padding::given);
  fails({"group dim 'n' is not in both x [n=2, height=5, in=4] and filter"}, {"height"},
        Padding::same, {"n"});
  expect_usage({"[conv] there is no spatial dim", kHere}, [&] { conv(x, f, {}); });
  expect_usage({"spatial dim 'height' with filter dim 'filter_height' is given twice"}, [&] {
    conv(x, f, {{{"height"}, {"height"}}});
  });
  Tensor other = g.input("other", {Dim("filter_height", 3), Dim("in", 3)}, DType::float32);
  expect_usage({"[conv] dim 'in' is 4 in x but 3 in the filter"},
               [&] { conv(x, other, {{{"height"}}}); });
  Tensor spatial = g.input("spatial", {Dim("filter_height", 3), height}, DType::float32);
  expect_usage({"[conv] the filter has the spatial dim 'height' of x"},
               [&] { conv(x, spatial, {{{"height"}}}); });
  Tensor mixed = g.input("mixed", {height, Dim("filter_height", 3)}, DType::float32);
  expect_usage({"[conv] x has the filter dim 'filter_height'"},
               [&] { conv(mixed, f, {{{"height"}}}); });
  Tensor whole = g.input("whole", {Dim("filter_height", 3), in}, DType::int32);
  expect_usage({"[conv] x is float32 and the filter int32; both are of one floating type"},
               [&] { conv(x, whole, {{{"height"}}}); });
  Tensor bounded = g.input("bounded", {Dim::bounded("height", 5), in}, DType::float32);
  expect_usage({"[conv] dim 'height' is bounded", "Padding::same and stride 1", "reshape() it"},
               [&] {
                 conv(bounded, f, {{{"height", "", 2}}});
               });
  expect_usage({"[max_pool] dim 'height' is bounded; reshape() it to a dim of fixed size"},
               [&] { max_pool(bounded, {{{"height"}}}); });
}

TEST_CASE("transposed convolution and padded pooling errors", "[errors]") {
  Graph g;
  const Dim in("in", 4), height("height", 5);
  Tensor x = g.input("x", {height, in}, DType::float32);
  Tensor f = g.input("f", {Dim("filter_height", 3), in, Dim("out", 2)}, DType::float32);
  ConvDim dim{"height"};
  dim.size = 9;
  expect_usage(
      {"[conv_transpose] a convolution of dim 'height' of size 9 has 9 windows, but x has 5",
       kHere},
      [&] {
        conv_transpose(x, f, {{dim}, Padding::same});
      });
  expect_usage({"[conv_transpose] the result would have -1 elements along dim 'height'"}, [&] {
    conv_transpose(x, f, {{{"height", "", 1, 1, 4, 4}}, Padding::given});
  });
  expect_usage(
      {"[max_pool] padding of 2 and 0 around dim 'height' has room for a window of 2", kHere}, [&] {
        max_pool(x, {{{"height", 2, 0, 1, 2, 0}}, Padding::given});
      });
  expect_usage({"[avg_pool] dim 'height' is given twice"}, [&] {
    avg_pool(x, {{{"height"}, {"height"}}});
  });
  expect_usage({"[avg_pool] there is no dim to pool"},
               [&] { avg_pool(x, {std::vector<PoolDim>{}}); });
  Tensor i = g.input("i", {height}, DType::int32);
  expect_usage({"[avg_pool] x is int32; a mean needs a floating type"},
               [&] { avg_pool(i, {{{"height"}}}); });
}

TEST_CASE("order and position errors", "[errors]") {
  Graph g;
  const Dim n("n", 5);
  Tensor x = g.input("x", {Dim("a", 2), n}, DType::float32);
  Tensor at = g.input("at", Shape{}, DType::int32), real = g.input("real", Shape{}, DType::float32);
  Tensor of_n = g.input("of_n", {n}, DType::int32);
  expect_usage({"[nth_largest] element 5 in order of dim 'n' of size 5; they are 0 .. 4", kHere},
               [&] { nth_largest(x, "n", 5); });
  expect_usage({"[nth_smallest] element -1 in order of dim 'n' of size 5"},
               [&] { nth_smallest(x, "n", -1); });
  expect_usage({"[sort]", "no dim 'm'", kHere}, [&] { sort(x, "m"); });
  expect_usage({"[dynamic_shift] the position is float32; it is int32, use cast()", kHere},
               [&] { dynamic_shift(x, real, "n"); });
  expect_usage({"[dynamic_shift] dim 'n' of the position is not one of x's others"},
               [&] { dynamic_shift(x, of_n, "n"); });
  expect_usage({"[dynamic_slice] 6 elements of dim 'n' of size 5", kHere},
               [&] { dynamic_slice(x, at, "n", 6); });
  Tensor wide = g.input("wide", {Dim("a", 2), Dim("n", 6)}, DType::float32);
  expect_usage({"[dynamic_update] an update of 6 elements along dim 'n' of size 5", kHere},
               [&] { dynamic_update(x, wide, at, "n"); });
  Tensor bounded = g.input("bounded", {Dim::bounded("n", 5)}, DType::float32);
  expect_usage({"[dynamic_slice] dim 'n' is bounded; reshape() it to a dim of fixed size"},
               [&] { dynamic_slice(bounded, at, "n", 2); });
}

TEST_CASE("parameter and update errors", "[errors]") {
  Inputs m;
  Tensor w = m.g.parameter("w", {kA}, nn::zeros());
  expect_usage({"update() of 'x'", "not a parameter or state", kHere},
               [&] { m.g.update(m.x, m.x); });
  expect_usage({"update() of 'w'", "[a=4]", "[a=4, b=6]", kHere}, [&] { m.g.update(w, m.x); });
  expect_usage({"update() of 'w'", "float32", "int32", kHere}, [&] { m.g.update(w, m.ids); });
  m.g.update(w, w + 1.0);
  expect_usage({"'w' is updated twice", kHere}, [&] { m.g.update(w, w); });
  expect_usage({"parameter 'v' has the bounded dim 'n'"},
               [&] { m.g.parameter("v", {Dim::bounded("n", 3)}, nn::zeros()); });
  const Initializer wrong = [](Graph& g, const Shape&, DType) { return constant(g, 1); };
  expect_usage({"the initializer of 'u' made float32 [] where float32 [a=4] is needed"},
               [&] { m.g.parameter("u", {kA}, wrong); });
  expect_usage({"no tensor 'ww'", "did you mean 'w'?"}, [&] { m.g.find("ww"); });
}

TEST_CASE("minimize without parameters, and a model whose sizes do not fit", "[errors]") {
  Inputs m;
  expect_usage({"[minimize] the model has no parameters", kHere},
               [&] { minimize(sum_all(m.x), constant(m.g, 1), sgd()); });
  Graph g;
  nn::GptOptions o;
  o.d_model = 30;
  o.heads = 4;
  expect_usage({"gpt: d_model 30 is not a multiple of heads 4"}, [&] { nn::gpt(g, o); });
}

}  // namespace TESSERA_FILE
