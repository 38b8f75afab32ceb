// The messages of layers and attention for shapes and options that do not go together.
#include "support/expect_error.h"
#include "tessera/tessera.h"

using namespace tessera;
using test::expect_usage;

namespace TESSERA_FILE {

const Dim kBatch("batch", 3), kLength("length", 4), kMemory("memory_length", 5), kModel("model", 6),
    kDepth("d_head", 2);
const char* kHere = "(errors_layers_test.cpp:";

struct Inputs {
  Graph g;
  Tensor of(const Shape& shape, DType dtype = DType::float32) {
    return g.input(g.unique_name("x"), shape, dtype);
  }
  Tensor x = of({kBatch, kLength, kModel});
  Tensor q = of({kBatch, kLength, kDepth}), k = of({kBatch, kMemory, kDepth});
};

TEST_CASE("a loss by blocks of examples", "[errors]") {
  Inputs in;
  const Tensor w = in.of({Dim("vocab", 7), kModel});
  const Tensor labels = in.of({kBatch, kLength}, DType::int32);
  const auto loss = [&](Tensor x, nn::LinearCrossEntropyOptions o) {
    o.contracted = "model";
    return [=] { nn::linear_cross_entropy(x, w, labels, {}, o); };
  };
  expect_usage({"[linear_cross_entropy] 3 blocks do not divide 'length' of 4", "divisor", kHere},
               loss(in.x, {.blocks = 3}));
  expect_usage({"[linear_cross_entropy] 0 blocks do not divide", kHere}, loss(in.x, {.blocks = 0}));
  expect_usage({"[linear_cross_entropy] x [batch=3, length=4, model=6] has no dim 'rows'", kHere},
               loss(in.x, {.dim = "rows"}));
  expect_usage({"[linear_cross_entropy] w [vocab=7, model=6] has no dim 'classes'", kHere},
               loss(in.x, {.classes = "classes"}));
  expect_usage({"[linear_cross_entropy] 'length' is bounded", "cut another dim", kHere},
               loss(in.of({kBatch, Dim::bounded("length", 4), kModel}), {.blocks = 2}));
}

TEST_CASE("a logit has a label each", "[errors]") {
  Inputs in;
  expect_usage({"[sigmoid_cross_entropy] labels [batch=3] for logits [batch=3, length=4, model=6]",
                "use broadcast()", kHere},
               [&] { nn::sigmoid_cross_entropy(in.x, in.of(Shape{kBatch})); });
  Tensor turned = in.of({kModel, kBatch, kLength});
  CHECK(nn::sigmoid_cross_entropy(in.x, turned).shape() == in.x.shape());
}

TEST_CASE("queries and keys have positions of their own", "[errors]") {
  Inputs in;
  const auto alike = [](const std::string& op) {
    return std::vector<std::string>{"[" + op + "] queries and keys both lie along the dim 'length'",
                                    "another name", kHere};
  };
  expect_usage(alike("causal_mask"), [&] { nn::causal_mask(in.g, kLength, kLength); });
  expect_usage(alike("window_mask"), [&] { nn::window_mask(in.g, kLength, kLength, 1, 1); });
  expect_usage(alike("relative_buckets"), [&] { nn::relative_buckets(in.g, kLength, kLength); });
  Tensor prefix = in.of({}, DType::int32), segments = in.of({kBatch, kLength}, DType::int32);
  expect_usage(alike("prefix_mask"), [&] { nn::prefix_mask(prefix, kLength, kLength); });
  expect_usage({"[segment_mask] segments [batch=3, length=4] and memory_segments [batch=3, "
                "length=4]",
                "use rename()", kHere},
               [&] { nn::segment_mask(segments, segments); });
}

TEST_CASE("what local attention may see", "[errors]") {
  Inputs in;
  nn::LocalOptions o;
  o.radius = 2;
  o.ahead = 1;
  const auto build = [&] { nn::local_attention(in.q, in.q, in.q, o); };
  expect_usage({"[local_attention] ahead 1 with blocks of 2 and causal true", kHere}, build);
  o.causal = false;
  o.ahead = 3;
  expect_usage({"[local_attention] ahead 3 with blocks of 2 and causal false", kHere}, build);
  o.ahead = 0;
  o.segments = in.of({kBatch, Dim("length", 3)}, DType::int32);
  expect_usage(
      {"[local_attention] the segments have 3 places along 'length', the query has 4", kHere},
      build);
  o.segments = in.of(Shape{kBatch}, DType::int32);
  expect_usage({"[local_attention] shape [batch=3] has no dim 'length'", kHere}, build);
}

TEST_CASE("options of layers out of range", "[errors]") {
  Inputs in;
  expect_usage({"[norm] eps -1 is negative", kHere}, [&] { nn::norm(in.x, "a", "model", -1); });
  expect_usage({"[rms_norm] eps -1 is negative", kHere},
               [&] { nn::rms_norm(in.x, "b", "model", -1); });
  expect_usage({"[batch_norm] eps 0.001 and momentum 2:", kHere},
               [&] { nn::batch_norm(in.x, "c", "model", {.momentum = 2}); });
  AttentionOptions o;
  o.dropout = -1;
  expect_usage({"[attention] dropout -1 is not in [0, 1)", kHere},
               [&] { attention(in.q, in.k, in.k, {}, o); });
  nn::BiasedOptions biased;
  biased.dropout = 1, biased.extra_logit = 0;
  expect_usage({"[biased_attention] dropout 1 is not in [0, 1)", kHere},
               [&] { nn::biased_attention(in.q, in.k, in.k, {}, biased); });
  expect_usage({"[talking_heads] dropout -1 is not in [0, 1)", kHere},
               [&] { nn::talking_heads(in.q, in.k, in.k, in.q, in.q, {}, o); });
  expect_usage({"[feed_forward] rate -1 is not in [0, 1)", kHere},
               [&] { nn::feed_forward(in.x, "d", "model", Dim("ff", 2), {.dropout = -1}); });
  expect_usage({"[moe] eps -1 is negative", kHere},
               [&] { nn::moe(in.x, "e", "model", {.input_jitter = -1}); });
  expect_usage({"[moe] rate -1 is not in [0, 1)", kHere},
               [&] { nn::moe(in.x, "f", "model", {.input_dropout = -1}); });
  expect_usage({"[route] second_balance 0.5 with one choice", kHere},
               [&] { nn::route(in.x, "length", "model", {.choices = 1, .second_balance = 0.5}); });
  expect_usage({"[momentum] mu is 2; it must be in [0, 1)", kHere}, [] { momentum({.mu = 2}); });
  expect_usage({"[adafactor] beta2 0.9 and decay 0.5 are both given", kHere},
               [] { adafactor({.beta2 = 0.9, .decay = 0.5}); });
}

}  // namespace TESSERA_FILE
