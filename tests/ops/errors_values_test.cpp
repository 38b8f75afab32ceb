// Values that an op, a layer or an optimizer cannot work with, and dims that its tensors lack.
#include <cmath>

#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

const Dim kBatch("batch", 3), kLength("length", 4), kMemory("memory_length", 5), kModel("model", 6),
    kDepth("d_head", 2);
const char* kHere = "(errors_values_test.cpp:";

struct Inputs {
  Graph g;
  Tensor of(const Shape& shape, DType dtype = DType::float32) {
    return g.input(g.unique_name("x"), shape, dtype);
  }
  Tensor x = of({kBatch, kLength, kModel}), ids = of({kBatch, kLength}, DType::int32);
  Tensor q = of({kBatch, kLength, kDepth}), k = of({kBatch, kMemory, kDepth});
};

TEST_CASE("a number is one that the dtype holds", "[errors]") {
  Inputs m;
  Tensor x = cast(m.x, DType::float16), seen = m.x > 0.0;
  const auto too_large = [&](const char* op, const char* number, auto work) {
    expect_usage({std::string(op) + number + " is no float16, whose largest number is 65504",
                  "cast()", kHere},
                 work);
  };
  too_large("[mul] ", "1000000000", [&] { x * 1e9; });
  too_large("[add] ", "-65520", [&] { x + -65520.0; });
  too_large("[where] ", "-1e+30", [&] { where(seen, x, -1e30); });
  too_large("[constant] ", "70000", [&] { constant(m.g, 70000, DType::float16); });
  too_large("[clip] ", "-1000000000", [&] { clip(x, -1e9, 1e9); });
  too_large("[pad] ", "-1e+30", [&] { pad(x, "model", 1, 0, -1e30); });
  too_large("[one_hot] ", "100000",
            [&] { one_hot(m.ids, Dim("classes", 3), 1e5, 0, DType::float16); });
  x *= 65519.0;  // rounded to 65504
  constant(m.g, -INFINITY, DType::float16);
  constant(m.g, NAN, DType::float16);
  constant(m.g, 1e-30, DType::float16);
  constant(m.g, 1e38, DType::bfloat16);
  constant(m.g, 1e300, DType::float64);
  expect_usage({"[constant] 1e+39 is no float32, whose largest number is 3.402"},
               [&] { constant(m.g, 1e39); });
  expect_usage({"[constant] 3.4e+38 is no bfloat16, whose largest number is 3.389"},
               [&] { constant(m.g, 3.4e38, DType::bfloat16); });
}

TEST_CASE("an index is of a dtype that holds it", "[errors]") {
  Graph g;
  expect_usage({"[iota] an index along dim 'n' of bool; take int32", kHere},
               [&] { iota(g, Dim("n", 2), DType::bool_); });
  const auto ends_at = [&](DType dtype, int64_t last) {
    CHECK(iota(g, Dim("n", last + 1), dtype).dtype() == dtype);
    expect_usage({"[iota] the indices along dim 'n' go to " + std::to_string(last + 1) + ", and " +
                      to_string(dtype) + " holds whole numbers to " + std::to_string(last),
                  kHere},
                 [&] { iota(g, Dim("n", last + 2), dtype); });
  };
  ends_at(DType::uint8, 255);
  ends_at(DType::bfloat16, 256);
  ends_at(DType::float16, 2048);
  ends_at(DType::float32, 1 << 24);
  ends_at(DType::float64, int64_t{1} << 53);
  ends_at(DType::int32, (int64_t{1} << 31) - 1);
}

TEST_CASE("rows of an embedding have dims of their own", "[errors]") {
  Inputs in;
  expect_usage({"[embedding] dim 'length' of a row is also one of the indices [batch=3, length=4]",
                "rename()", kHere},
               [&] {
                 nn::embedding(in.ids, "e", Dim("vocab", 7), {kLength, kModel});
               });
  expect_usage({"[embedding] dim 'vocab' of a row is also that of the table's rows", kHere},
               [&] { nn::embedding(in.ids, "f", Dim("vocab", 7), Shape{Dim("vocab", 7)}); });
}

TEST_CASE("what rotary turns by", "[errors]") {
  Inputs in;
  const auto turned = [&](Tensor positions, double base = 1e4) {
    return [&in, positions, base] { nn::rotary(in.q, "length", "d_head", positions, base); };
  };
  expect_usage({"[rotary] the positions [q=2] have the dim 'q'; they have some dims of x "
                "[batch=3, length=4, d_head=2] besides 'd_head'",
                kHere},
               turned(in.of(Shape{Dim("q", 2)}, DType::int32)));
  expect_usage({"[rotary] the positions [d_head=2] have the dim 'd_head'", kHere},
               turned(in.of(Shape{kDepth}, DType::int32)));
  expect_usage({"[rotary] the positions are float32; they must be int32 or int64", kHere},
               turned(in.of(Shape{kLength})));
  expect_usage({"[rotary] base 0; it must be positive and finite", kHere}, turned({}, 0));
  expect_usage({"[rotary] base -2;", kHere}, turned({}, -2));
  expect_usage({"[rotary] base inf;", kHere}, turned({}, INFINITY));
  expect_usage({"[rotary] base nan;", kHere}, turned({}, NAN));
  expect_usage({"[rotary] x is int32; it must be floating", kHere}, [&] {
    nn::rotary(in.of({kLength, kDepth}, DType::int32), "length", "d_head");
  });
  turned(in.of({kBatch, kLength}, DType::int64))();
}

TEST_CASE("a rate that is a tensor is a floating scalar", "[errors]") {
  Inputs in;
  expect_usage({"[dropout_at] the rate is int32 []; it must be a floating scalar", kHere},
               [&] { nn::dropout_at(in.x, constant(in.g, 0, DType::int32)); });
  expect_usage({"[dropout_at] the rate is float32 [batch=3]; it must be a floating scalar", kHere},
               [&] { nn::dropout_at(in.x, in.of(Shape{kBatch})); });
}

TEST_CASE("eps of the norms, and the size of a memory", "[errors]") {
  Inputs in;
  const Tensor scale = in.of(Shape{kModel}), zero = constant(in.g, 0, DType::int32);
  expect_usage({"[layer_norm] eps is -1; it must be at least 0", kHere},
               [&] { layer_norm(in.x, "model", scale, scale, -1); });
  expect_usage({"[rms_norm] eps is nan; it must be at least 0", kHere},
               [&] { rms_norm(in.x, "model", scale, NAN); });
  for (const int64_t size : {0, -3}) {
    expect_usage({"[attention_part] " + std::to_string(size) + " keys in all", kHere},
                 [&] { attention_part(in.q, in.k, in.k, zero, zero, size); });
  }
}

TEST_CASE("the structure of attention", "[errors]") {
  Inputs in;
  const auto attended = [&](auto change) {
    AttentionOptions o;
    change(o);
    return [&in, o] { attention(in.q, in.k, in.k, {}, o); };
  };
  for (const int64_t window : {0, -3})
    expect_usage({"[attention] a window of " + std::to_string(window) +
                      " keys; a query sees at least itself: 1 or more",
                  kHere},
                 attended([&](AttentionOptions& o) { o.window = window; }));
  expect_usage({"[attention] a soft cap of -2; it is positive and finite, or 0 for none", kHere},
               attended([](AttentionOptions& o) { o.soft_cap = -2; }));
  expect_usage({"[attention] a soft cap of nan;", kHere},
               attended([](AttentionOptions& o) { o.soft_cap = NAN; }));
  for (const double scale : {NAN, INFINITY})
    expect_usage(
        {"[attention] a scale of ", "; it is finite, or 0 for 1 / sqrt(size of 'd_head')", kHere},
        attended([&](AttentionOptions& o) { o.scale = scale; }));
  const Tensor ids = in.of({kBatch, kLength}, DType::int32),
               of_keys = in.of({kBatch, kMemory}, DType::int32);
  expect_usage({"[attention] there are memory_segments [batch=3, memory_length=5], but no segments "
                "of the queries [batch=3, length=4, d_head=2]",
                kHere},
               attended([&](AttentionOptions& o) { o.memory_segments = of_keys; }));
  const auto segments = [&](Tensor own, Tensor theirs) {
    return attended([&](AttentionOptions& o) { o.segments = own, o.memory_segments = theirs; });
  };
  expect_usage({"[attention] the segments of the queries [batch=3] lack the dim 'length': each "
                "position has its own",
                kHere},
               segments(in.of({kBatch}, DType::int32), {}));
  expect_usage(
      {"[attention] the segments of the keys [batch=3] lack the dim 'memory_length'", kHere},
      segments(ids, in.of({kBatch}, DType::int32)));
  expect_usage({"[attention] the segments are float32; they must be int32", kHere},
               segments(in.of({kBatch, kLength}), of_keys));
  expect_usage(
      {"[attention] the memory_segments [memory_length=5, d_head=2] have the dim 'd_head'; "
       "they have 'memory_length' and some dims of the query",
       kHere},
      segments(ids, in.of({kMemory, kDepth}, DType::int32)));
  expect_usage({"[attention]", "'memory_length'", "4", "5", kHere}, segments(ids, {}));
  const Tensor prefix = in.of(Shape{kBatch}, DType::int32), sinks = in.of(Shape{kBatch});
  const auto causal = [&](const Tensor& of_prefix, const Tensor& of_sinks) {
    return attended(
        [&](AttentionOptions& o) { o.causal = true, o.prefix = of_prefix, o.sinks = of_sinks; });
  };
  expect_usage({"[attention] there is a prefix [batch=3], but attention is not causal", kHere},
               attended([&](AttentionOptions& o) { o.prefix = prefix; }));
  expect_usage({"[attention] the sizes of prefixes are float32; they must be int32", kHere},
               causal(sinks, {}));
  expect_usage({"[attention] the sinks are int32; they must be floating", kHere},
               causal({}, prefix));
  expect_usage({"[attention] the sinks are [batch=3, length=4]: they have dims of the query "
                "[batch=3, length=4, d_head=2] besides 'length' and 'd_head'",
                kHere},
               causal({}, in.of({kBatch, kLength})));
  expect_usage({"[attention] the slopes are int32; they must be floating", kHere},
               attended([&](AttentionOptions& o) { o.slopes = prefix; }));
  expect_usage(
      {"[attention] the slopes are [batch=3, length=4]: they have dims of the query", kHere},
      attended([&](AttentionOptions& o) {
        o.slopes = in.of({kBatch, kLength});
      }));
  const Tensor of_distance = in.of({kBatch, Dim("entries", 4)});
  const char* const odd =
      ": besides dims of the query [batch=3, length=4, d_head=2] they have one of their own, with "
      "an odd number of entries, one for distance 0 and as many for keys behind the query as ahead "
      "of it";
  expect_usage({"[attention] the biases by distance are int32; they must be floating", kHere},
               attended([&](AttentionOptions& o) { o.by_distance = prefix; }));
  expect_usage({std::string("[attention] the biases by distance are [batch=3, entries=4]") + odd},
               attended([&](AttentionOptions& o) { o.by_distance = of_distance; }));
  expect_usage({std::string("[attention] the biases by distance are [batch=3]") + odd},
               attended([&](AttentionOptions& o) { o.by_distance = sinks; }));
  expect_usage({"[biased_attention] the biases by distance are [batch=3, entries=4]: besides dims "
                "of the logits [batch=3, length=4, memory_length=5] they have one of their own, "
                "with an odd number of entries"},
               [&] {
                 nn::BiasedOptions o;
                 o.bias = sinks;
                 o.by_distance = of_distance;
                 nn::biased_attention(in.q, in.k, in.k, {}, o);
               });
  AttentionOptions of_part;
  of_part.by_distance = of_distance;
  expect_usage({"[talking_heads] heads that are mixed have no biases by distance; they are "
                "[batch=3, entries=4]",
                kHere},
               [&] { nn::talking_heads(in.q, in.k, in.k, in.q, in.q, {}, of_part); });
  of_part.by_distance = {};
  of_part.slopes = sinks;
  expect_usage({"[talking_heads] heads that are mixed have no slopes; they are [batch=3]", kHere},
               [&] { nn::talking_heads(in.q, in.k, in.k, in.q, in.q, {}, of_part); });
  of_part.slopes = {};
  of_part.sinks = sinks;
  const Tensor zero = constant(in.g, 0, DType::int32);
  expect_usage({"[attention_part] a part has no sinks of its own; attention() has them", kHere},
               [&] { attention_part(in.q, in.k, in.k, zero, zero, 5, of_part); });
  expect_usage({"[talking_heads] heads that are mixed have no sinks; they are [batch=3]", kHere},
               [&] { nn::talking_heads(in.q, in.k, in.k, in.q, in.q, {}, of_part); });
  nn::BiasedOptions biased;
  biased.extra_logit = 0;
  biased.window = 0;
  expect_usage({"[biased_attention] a window of 0 keys; a query sees at least itself", kHere},
               [&] { nn::biased_attention(in.q, in.k, in.k, {}, biased); });
  biased.window = {}, biased.sinks = sinks;
  expect_usage(
      {"[biased_attention] there are sinks [batch=3] and an extra logit of 0; give one", kHere},
      [&] { nn::biased_attention(in.q, in.k, in.k, {}, biased); });
  biased.sinks = {}, biased.bias = in.of({kLength, kMemory}), biased.prefix = prefix;
  expect_usage(
      {"[biased_attention] there is a prefix [batch=3], but attention is not causal", kHere},
      [&] { nn::biased_attention(in.q, in.k, in.k, {}, biased); });
  biased.prefix = {}, biased.scale = NAN;
  expect_usage({"[biased_attention] a scale of nan; it is finite, or 0 for 1 / sqrt(size", kHere},
               [&] { nn::biased_attention(in.q, in.k, in.k, {}, biased); });
  biased.scale = 0, biased.soft_cap = -1;
  expect_usage({"[biased_attention] a soft cap of -1; it is positive and finite", kHere},
               [&] { nn::biased_attention(in.q, in.k, in.k, {}, biased); });
}

TEST_CASE("layers with weights take floating tensors", "[errors]") {
  Inputs in;
  const Tensor x = in.of({kBatch, kModel}, DType::int32);
  expect_usage({"[dense] x is int32; it must be floating, use cast()", kHere},
               [&] { nn::dense(x, "a", {"model"}, {kDepth}); });
  expect_usage({"[dense_product] x is int32; it must be floating, use cast()", kHere},
               [&] { nn::dense_product(x, "b", {"model"}, {kDepth}, {"relu"}); });
  expect_usage({"[feed_forward] x is int32; it must be floating, use cast()", kHere},
               [&] { nn::feed_forward(x, "c", "model", Dim("ff", 8)); });
}

TEST_CASE("a mask of attention has no dim that the logits sum over", "[errors]") {
  Inputs in;
  const Tensor mask = in.of({kLength, kMemory, kDepth}, DType::bool_);
  expect_usage({"[attention] the mask [length=4, memory_length=5, d_head=2] has the dim 'd_head'",
                "dims of the logits", kHere},
               [&] { attention(in.q, in.k, in.k, mask); });
  nn::BiasedOptions o;
  expect_usage({"[biased_attention] the mask", "has the dim 'd_head'", kHere},
               [&] { nn::biased_attention(in.q, in.k, in.k, mask, o); });
  o.bias = in.of({kLength, kMemory});
  expect_usage({"[biased_attention] the mask has the dim 'd_head'; logits are [batch=3, length=4, "
                "memory_length=5]",
                kHere},
               [&] { nn::biased_attention(in.q, in.k, in.k, mask, o); });
  nn::MultiHeadOptions heads;
  heads.heads = 2, heads.d_head = 2, heads.mask = mask;
  expect_usage({"[self_attention] the mask", "has the dim 'd_head'", kHere},
               [&] { nn::self_attention(in.x, "s", "model", heads); });
}

TEST_CASE("numbers of optimizers and schedules", "[errors]") {
  expect_usage({"[sgd] weight_decay is -1; it must be at least 0"}, [] { sgd(-1); });
  expect_usage({"[momentum] weight_decay is -1; it must be at least 0", kHere},
               [] { momentum(0.9, -1); });
  expect_usage({"[adam] weight_decay is nan;", kHere}, [] { adam({.weight_decay = NAN}); });
  expect_usage({"[lamb] weight_decay is -1;", kHere}, [] { lamb({.weight_decay = -1}); });
  expect_usage({"[lion] weight_decay is -1;", kHere}, [] { lion({.weight_decay = -1}); });
  expect_usage({"[adafactor] weight_decay is -1;", kHere}, [] { adafactor({.weight_decay = -1}); });
  expect_usage({"[with_rates] the factor of 'p' is nan; it is finite", kHere}, [] {
    with_rates(sgd(), {{"p", NAN}});
  });
  expect_usage({"[Schedule] lr nan; it is finite and not negative"},
               [] { (void)Schedule{.lr = NAN}.at(0); });
  expect_usage({"[Schedule] lr -1;"}, [] { (void)Schedule{.lr = -1}.at(0); });
  expect_usage({"[Schedule] floor nan; it is a share"}, [] { (void)Schedule{.floor = NAN}.at(0); });
  expect_usage({"[Schedule] step -1; steps are counted from 0"}, [] { (void)Schedule{}.at(-1); });
}

TEST_CASE("an optimizer that is an empty function", "[errors]") {
  Graph g;
  const Tensor w = g.parameter("w", {kModel}, nn::ones()), lr = constant(g, 0.1);
  expect_usage({"[minimize] the optimizer is an empty function", kHere},
               [&] { minimize(sum_all(w), lr, Optimizer()); });
  expect_usage({"[minimize_in_microbatches] the optimizer is an empty function", kHere}, [&] {
    minimize_in_microbatches(
        g, "batch", 2, [&] { return sum_all(w); }, lr, Optimizer());
  });
  expect_usage({"[minimize_in_microbatches] the loss is an empty function", kHere},
               [&] { minimize_in_microbatches(g, "batch", 2, nullptr, lr, sgd()); });
  expect_usage({"[with_rates] the optimizer is an empty function", kHere},
               [] { with_rates(Optimizer(), {}); });
}

}  // namespace TESSERA_FILE
