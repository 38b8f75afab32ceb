// Whatever a function is made of, its errors name it and the caller's line.
#include "base/fail.h"
#include "support/expect_error.h"
#include "tessera/caller.h"
#include "tessera/rounding.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

const Dim kA("a", 4), kB("b", 6), kC("c", 3);
const char* kHere = "(errors_names_test.cpp:";

struct Inputs {
  Graph g;
  Tensor x = g.input("x", {kA, kB}, DType::float32);
  Tensor y = g.input("y", {kB, kC}, DType::float32);
  Tensor ids = g.input("ids", {kA}, DType::int32);
  Tensor tail = g.input("tail", {kA, Dim::bounded("t", 8)}, DType::float32);
};

TEST_CASE("an empty tensor is an error of the op that got it", "[errors]") {
  Inputs m;
  const Tensor none;
  expect_usage({"[exp] an empty Tensor was used; it was never assigned a value", kHere},
               [&] { exp(none); });
  expect_usage({"[add] an operand is an empty Tensor", kHere}, [&] { m.x + none; });
  expect_usage({"[mul] an empty Tensor", kHere}, [&] { none * 2.0; });
  expect_usage({"[sub] an empty Tensor", kHere}, [&] { 2.0 - none; });
  expect_usage({"[einsum] an empty Tensor", kHere}, [&] { einsum({m.x, none}, {kA}); });
  expect_usage({"[reduce_mean] an empty Tensor", kHere}, [&] { reduce_mean(none, "a"); });
  expect_usage({"[reshape] an empty Tensor", kHere}, [&] { reshape(none, {kA}); });
  expect_usage({"[gradients] an empty Tensor", kHere}, [&] { gradients(none, {m.x}); });
  expect_usage({"[gradients] an empty Tensor", kHere}, [&] { gradients(sum_all(m.x), {none}); });
  const Tensor w = m.g.parameter("w", {kA}, nn::zeros());
  expect_usage({"[update] an empty Tensor", kHere}, [&] { m.g.update(w, none); });
  Graph other;
  const Tensor z = other.input("z", {kA}, DType::float32);
  expect_usage({"[update] 'z' belongs to another graph", kHere}, [&] { m.g.update(w, z); });
  expect_usage({"[dense] an empty Tensor", kHere}, [&] { nn::dense(none, "d", {"a"}, {kC}); });
}

TEST_CASE("an error inside of an op is one of the op", "[errors]") {
  Inputs m;
  expect_usage({"[reduce_logsumexp] the operand is int32; it must be floating", kHere},
               [&] { reduce_logsumexp(m.ids, "a"); });
  expect_usage({"[elu] the operand is int32", kHere}, [&] { elu(m.ids); });
  expect_usage({"[windows] dim 't' is bounded; reshape() it to a dim of fixed size", kHere},
               [&] { windows(m.tail, "t", Dim("w", 2)); });
  expect_usage(
      {"[stack] operands [a=4, b=6] and [b=6, c=3] differ; they must have the same dims", kHere},
      [&] {
        stack({m.x, m.y}, "s");
      });
  expect_usage({"[prefer]", "no dim 'q'", kHere}, [&] { m.x.prefer("q"); });
  expect_usage({"[einsum] dim 'a' occurs twice", kHere}, [&] { einsum({m.x}, {kA, kA}); });
}

TEST_CASE("errors of layers name the layer and the caller's line", "[errors]") {
  Inputs m;
  expect_usage({"[dense] shape [a=4, b=6] has no dim 'q'", kHere},
               [&] { nn::dense(m.x, "d", {"q"}, {kC}); });
  expect_usage({"[dense] dim 'a' occurs twice", kHere}, [&] {
    nn::dense(m.x, "d", {"b"}, {kC}, {.stacked = {"a", "a"}});
  });
  expect_usage({"[embedding] the indices are float32; they must be int32 or int64", kHere},
               [&] { nn::embedding(m.x, "e", Dim("vocab", 5), {kC}); });
  expect_usage({"[feed_forward]", "no dim 'q'", kHere},
               [&] { nn::feed_forward(m.x, "f", "q", Dim("h", 8)); });
  expect_usage({"[norm]", "no dim 'q'", kHere}, [&] { nn::norm(m.x, "n", "q"); });
  expect_usage({"[batch_norm]", "no dim 'q'", kHere}, [&] { nn::batch_norm(m.x, "n", "q"); });
  expect_usage({"[multihead_attention]", "no dim 'q'", kHere},
               [&] { nn::multihead_attention(m.x, m.x, "m", "q"); });
  expect_usage({"[moe]", "no dim 'q'", kHere}, [&] { nn::moe(m.x, "m", "q", {.tokens = "a"}); });
  expect_usage({"[moe]", "no dim 'length'", kHere}, [&] { nn::moe(m.x, "m", "b"); });
  expect_usage({"[normal] stddev -1 is negative", kHere}, [&] { nn::normal(-1); });
  expect_usage({"[truncated] stddev -1 is negative", kHere}, [&] { nn::truncated(-1); });
  expect_usage({"[uniform] hi 0 is below lo 1", kHere}, [&] { nn::uniform(1, 0); });
}

TEST_CASE("dims one letter apart are no two dims of a result", "[errors]") {
  Graph g;
  const Dim batch("batch", 4), length("length", 16), misspelt("lenght", 16);
  Tensor x = g.input("x", {batch, length}, DType::float32);
  Tensor position = g.parameter("position", {misspelt}, nn::zeros());
  expect_usage({"[add] the operands [batch=4, length=16] and [lenght=16] have dims 'length' and "
                "'lenght', and the result would have both; give them one name, or broadcast() an "
                "operand if it is meant",
                kHere},
               [&] { x + position; });
  expect_usage({"[where] ", "'lenght' and 'length'", kHere}, [&] { where(position > 0.0, x, x); });
  // Meant, of another size, numbered, short or at least two letters apart.
  CHECK((x + broadcast(position, {misspelt, length})).shape().rank() == 3);
  const auto sum_with = [&](const Dim& d) {
    return (x + constant(g, 1, DType::float32, {d})).shape().rank();
  };
  CHECK(sum_with(Dim("lengths", 8)) == 3);
  CHECK(sum_with(Dim("lenghts", 16)) == 3);
  CHECK(sum_with(Dim("memory", 16)) == 3);
  CHECK(sum_with(Dim("_length", 16)) == 3);
  Tensor h = g.input("h", {Dim("hidden1", 4)}, DType::float32);
  CHECK((h + g.input("h2", {Dim("hidden2", 4)}, DType::float32)).shape().rank() == 2);
  Tensor q = g.input("q", {Dim("row", 4)}, DType::float32);
  CHECK((q + g.input("k", {Dim("col", 4)}, DType::float32)).shape().rank() == 2);
}

TEST_CASE("names of three letters and their plural, and words of one letter", "[errors]") {
  Graph g;
  const auto both = [&](const char* a, const char* b) {
    return g.input(g.unique_name("x"), {Dim(a, 4)}, DType::float32) >
           g.input(g.unique_name("x"), {Dim(b, 4)}, DType::float32);
  };
  expect_usage({"[greater] ", "'rows' and 'row'"}, [&] { both("rows", "row"); });
  expect_usage({"[greater] ", "'row' and 'rows'"}, [&] { both("row", "rows"); });
  for (const auto& [a, b] : {std::pair{"len_q", "len_k"}, {"q_len", "k_len"}, {"row", "how"}})
    CHECK(both(a, b).shape().rank() == 2);
}

TEST_CASE("a misspelt dim is one wherever a user writes it", "[errors]") {
  Graph g;
  const auto in = [&](const Shape& shape, DType dtype = DType::float32) {
    return g.input(g.unique_name("x"), shape, dtype);
  };
  const Dim batch("batch", 4), bacth("bacth", 4), c("c", 3);
  Tensor x = in({batch, c}), y = in({batch, c});
  expect_usage({"[einsum] the result [bacth=4] has the dim 'bacth', which no operand has, and "
                "'batch' of the operands would be summed",
                kHere},
               [&] {
                 einsum({x, y}, {bacth});
               });
  expect_usage({"[where] ", "'batch' and 'bacth'", kHere},
               [&] { where(in({batch}) > 0.0, x, in({bacth})); });
  expect_usage({"[minimum] ", "'batch' and 'bacth'", kHere}, [&] { minimum(x, in({bacth})); });
  expect_usage({"[logical_xor] ", "'batch' and 'bacth'", kHere},
               [&] { logical_xor(in({batch}) > 0.0, in({bacth}) > 0.0); });
  expect_usage({"[gather] ", "'batch' and 'bacth'", kHere}, [&] {
    gather(in({Dim("rows", 9), bacth}), in({batch}, DType::int32), "rows");
  });
  const Dim n("n", 8), k("k", 3), channels("channels", 4), chanels("chanels", 4);
  for (const bool transposed : {false, true})
    expect_usage({transposed ? "[conv_transpose] " : "[conv] ", "'channels' and 'chanels'", kHere},
                 [&] {
                   (transposed ? conv_transpose : conv)(in({n, channels}), in({k, chanels, c}),
                                                        {.dims = {{"n", "k"}}}, Loc::current());
                 });
  const Dim length("length", 5), memory("memory_length", 5), depth("d_head", 2);
  Tensor q = in({batch, length, depth}), m = in({batch, memory, depth});
  Tensor other = in({bacth, memory, depth}), mask = in({bacth, memory}, DType::bool_);
  const auto misspelt = [&](const char* op, auto work) {
    expect_usage({op, "'batch' and 'bacth'", kHere}, work);
  };
  misspelt("[attention] ", [&] { attention(q, other, other); });
  misspelt("[attention] ", [&] { attention(q, m, other); });
  misspelt("[attention] ", [&] { attention(q, m, m, mask); });
  misspelt("[biased_attention] ", [&] { nn::biased_attention(q, m, m, mask); });
  misspelt("[multihead_attention] ",
           [&] { nn::multihead_attention(q, m, "a", "d_head", {.mask = mask}); });
  misspelt("[self_attention] ", [&] { nn::self_attention(q, "b", "d_head", {.mask = mask}); });
  misspelt("[segment_mask] ", [&] {
    nn::segment_mask(in({batch, length}, DType::int32), in({bacth, memory}, DType::int32));
  });
  misspelt("[local_attention] ", [&] { nn::local_attention(q, in({bacth, length, depth}), q); });
}

TEST_CASE("what Tessera makes of a user's dims has no misspelt ones", "[errors]") {
  const Dim b("b", 2), own("qlen", 8), theirs("klen", 8);
  Graph g;
  CHECK(nn::causal_mask(g, own, theirs).shape().rank() == 2);
  CHECK(nn::window_mask(g, own, theirs, 1, 1).shape().rank() == 2);
  Tensor segments = g.input("s", {b, own}, DType::int32);
  CHECK(nn::prefix_mask(g.input("p", {b}, DType::int32), own, theirs).shape().rank() == 3);
  CHECK(nn::segment_mask(segments, rename(segments, "qlen", "klen")).shape().rank() == 3);
  CHECK(nn::relative_bias(g, "r", own, theirs, {Dim("heads", 2)}).shape().rank() == 3);
  CHECK(nn::sinusoids(g, own, theirs).shape().rank() == 2);
  CHECK(nn::segment_positions(segments, "qlen").shape() == segments.shape());
}

TEST_CASE("attention between dims of similar names runs under every layout", "[errors]") {
  for (const auto& [own, theirs] : {std::pair{"qlen", "klen"}, {"n", "m"}, {"pos", "mpos"}}) {
    const std::string q = std::string(own) + ":a", k = std::string(theirs) + ":a",
                      both = q + ";" + k;
    for (const bool causal : {false, true}) {
      double first = 0;
      for (const std::string& layout : {std::string(), q, k, both}) {
        INFO(own << ", causal " << causal << ", layout " << layout);
        Graph g;
        Tensor x = g.input("x", {Dim("b", 2), Dim(own, 8), Dim("d_head", 4)}, DType::float32);
        Tensor m = rename(x, own, theirs);
        nn::BiasedOptions options;
        options.length = own;
        options.memory_length = theirs;
        options.causal = causal;
        Tensor y = attention(x, m, m, {}, options), loss = sum_all(square(y)).named("loss");
        std::vector<Tensor> outputs = {loss, gradients(loss, {x})[0].named("gx")};
        if (layout != both) {  // there the logits cannot be split twice
          options.bias = g.parameter("bias", {Dim(own, 8), Dim(theirs, 8)}, nn::ones());
          outputs.push_back(nn::biased_attention(x, m, m, {}, options).named("biased"));
        }
        Cluster ranks = Cluster::threads(2);
        Session s(g, ranks, {Mesh::parse("a:2"), Layout::parse(layout), {{"f", outputs, false}}});
        Array values(DType::float32, {"b", own, "d_head"}, {2, 8, 4});
        for (int i = 0; i < 64; ++i) values.data<float>()[i] = static_cast<float>(i % 7) - 3;
        s.feed("x", values);
        s.run("f");
        if (layout.empty()) first = s.fetch_scalar("loss");
        CHECK(first > 0);
        CHECK(s.fetch_scalar("loss") == Approx(first).epsilon(1e-5));
      }
    }
  }
}

TEST_CASE("an error keeps the line where it was made if that is not the caller's", "[errors]") {
  const Error other(ErrorKind::usage, "[exp] wrong (model.cpp:3)");
  const auto at = std::source_location::current();
  CHECK(std::string(in_name_of("dense", at, other).what()) == other.what());
  const Error own(ErrorKind::usage, "[exp] wrong (" + where(at) + ", block1)");
  CHECK(std::string(in_name_of("dense", at, own).what()) ==
        "[dense] wrong (" + where(at) + ", block1)");
  const Error shape(ErrorKind::usage, "[a=4] has no dim 'b'");
  CHECK(std::string(in_name_of("dense", at, shape).what()) ==
        "[dense] [a=4] has no dim 'b' (" + where(at) + ")");
}

TEST_CASE("indices and random numbers of the wrong dtype", "[errors]") {
  Inputs m;
  expect_usage({"[one_hot] the indices are float32; they must be int32 or int64", kHere},
               [&] { one_hot(m.x, Dim("n", 5)); });
  expect_usage({"[one_hot] the indices are bool", kHere}, [&] { one_hot(m.x > 0.0, Dim("n", 5)); });
  expect_usage({"[one_hot] dim 'a' is also in the indices [a=4]; rename it there", kHere},
               [&] { one_hot(m.ids, kA); });
  expect_usage({"[random_uniform] bool numbers; they are drawn as a floating type", kHere},
               [&] { random_uniform(m.g, {kA}, 0, 1, DType::bool_); });
  expect_usage({"[random_normal] int32 numbers", kHere},
               [&] { random_normal(m.g, {kA}, 0, 1, DType::int32); });
  expect_usage({"[random_normal] stddev -1 is negative", kHere},
               [&] { random_normal(m.g, {kA}, 0, -1); });
  expect_usage({"[truncated_normal] stddev -1 is negative", kHere},
               [&] { truncated_normal(m.g, {kA}, 0, -1); });
  expect_usage({"[dropout] x is bool; it must be a number", kHere},
               [&] { dropout(m.x > 0.0, 0.5); });
  expect_usage({"[dropout_at] x is int32; it must be floating", kHere},
               [&] { nn::dropout_at(m.ids, constant(m.g, 0.5)); });
}

TEST_CASE("gradients by what has none name it, its line and the remedy", "[errors]") {
  Inputs m;
  expect_usage({"[gradients] 'ids' (errors_names_test.cpp:", "is int32; only floating tensors",
                "cast it before"},
               [&] { gradients(sum_all(m.x), {m.ids}); });
  expect_usage({"[gradients]", "is int32", kHere}, [&] { gradients(sum_all(m.ids), {m.x}); });
  Graph other;
  Tensor z = other.input("z", {kA}, DType::float32);
  expect_usage({"[gradients] 'z' belongs to another graph", kHere},
               [&] { gradients(sum_all(m.x), {z}); });
  m.g.parameter("table", {kA}, nn::zeros(), DType::int32);
  expect_usage(
      {"[minimize] parameter 'table' (errors_names_test.cpp:", "is int32", "Graph::state()"},
      [&] { minimize(sum_all(m.x), constant(m.g, 1), sgd()); });
}

TEST_CASE("a scalar product is written with {}", "[errors]") {
  Inputs m;
  CHECK(einsum({m.x, m.x}, {}).shape().rank() == 0);
  CHECK(einsum({m.x, m.y}, {kA, kC}).shape() == Shape{kA, kC});
}

TEST_CASE("the line of a front end's caller is that of nodes and errors", "[errors]") {
  Inputs m;
  const CallerScope outer("/home/user/train.py", 7);
  {
    const CallerScope inner("model.py", 41);
    CHECK(m.g.producer(exp(m.x).id()).at.to_string() == "model.py:41");
    expect_usage({"[reduce_mean]", "(model.py:41)"}, [&] { reduce_mean(m.x, "nothing"); });
    expect_usage({"[layer_norm]", "(model.py:41)"}, [&] { layer_norm(m.x, "nothing", m.x, m.x); });
  }
  CHECK(m.g.producer(exp(m.y).id()).at.to_string() == "train.py:7");
  Cluster one = Cluster::threads(1);
  const Tensor sum = sum_all(m.x).named("sum");
  Session session(m.g, one, {Mesh::parse("m:1"), {}, {{"run", {sum}, false}}});
  expect_usage({"[feed]", "(train.py:7)"},
               [&] { session.feed("nothing", Array(DType::float32, {}, {})); });
}

}  // namespace TESSERA_FILE
