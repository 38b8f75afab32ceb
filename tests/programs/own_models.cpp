// The command line with models of its own, for the tests of what such a model may say.
#include <unistd.h>

#include <atomic>
#include <bit>
#include <cmath>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "tessera/cli.h"
#include "tessera/host.h"
#include "tessera/op.h"
#include "tessera/tessera.h"
using namespace tessera;

/// Its name is exported, so that it stands in stacks.
[[gnu::noinline]] void sleep_for_ever() {
  for (;;) pause();
}

namespace {

constexpr int64_t kWords = 5, kWidth = 4;

/// Example i has i % 5 + 1 words that count.
class Words : public DataSource {
 public:
  explicit Words(bool held_out) : first_(held_out ? 100 : 0) {}
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return first_ == 0 ? 24 : 11; }
  void read(int64_t example, int field, const DataBox& box) const override {
    auto* to = static_cast<float*>(box.data);
    for (int64_t w = 0; w < box.extent[0]; ++w) {
      const int64_t word = box.offset[0] + w;
      if (field == 1) to[w * box.strides[0]] = word <= example % 5 ? 1.0f : 0.0f;
      for (int64_t d = 0; field == 0 && d < box.extent[1]; ++d) {
        const int64_t at = ((first_ + example) * kWords + word) * kWidth + box.offset[1] + d;
        to[w * box.strides[0] + d * box.strides[1]] =
            static_cast<float>(std::sin(1.3 * static_cast<double>(at)));
      }
    }
  }

 private:
  std::vector<DataField> fields_ = {
      {"words", DType::float32, {Dim("length", kWords), Dim("width", kWidth)}},
      {"mask", DType::float32, {Dim("length", kWords)}}};
  int64_t first_;
};

/// x as it is, but for one bit of one element of a slice that is not the first, from the third
/// call on: a rank whose processor is wrong.
void flip(const HostCall& call) {
  static std::atomic<int> calls = 0;
  const int batch = call.find("batch");
  const bool is_wrong = call.dims[static_cast<size_t>(batch)].offset > 0 && ++calls > 2;
  bool is_first = true;
  call.each([&](std::span<const int64_t> at) {
    const auto bits = std::bit_cast<uint32_t>(call.in[0].at<float>(at));
    call.out[0].at<float>(at) = std::bit_cast<float>(bits ^ (is_wrong && is_first ? 1u << 12 : 0u));
    is_first = false;
  });
}

constinit const Op kFlips = {
    .name = "flips",
    .infer = [](const OpCall& call) { return std::vector<ValueType>{call.in[0]}; },
    .gradient = [](const GradCall& call) { return std::vector<Tensor>{call.grads[0]}; },
    .host = flip};

nn::Model build(Graph& g, const Config& config, int64_t size, bool partial) {
  const Dim batch = nn::batch_dim(size, partial), length("length", kWords), width("width", kWidth);
  nn::Model model;
  Tensor words = g.input("words", {batch, length, width}, DType::float32);
  Tensor mask = g.input("mask", {batch, length}, DType::float32);
  Tensor out = nn::dense(words, "out", {"width"}, {});
  if (config.text("model.wrong") == "bit")
    out = g.add(kFlips, {out}, {}, Loc::current())[0].named("flipped");
  model.loss = sum_all(square(out - 1.0) * mask).named("loss");
  model.weight = sum_all(mask).named("words_that_count");
  model.inputs = {words, mask};
  Tensor right = sum_all(cast(out > 0.0, DType::float32) * mask);
  model.metrics = {{config.text("model.metric"), right.named("right_words"), model.weight},
                   {"mean_output", mean_all(out).named("mean_output")}};
  mean_all(abs(out)).named("spread");  // for --watch: nothing reads it
  const std::string& wrong = config.text("model.wrong");
  if (wrong == "no loss") model.loss = {};
  if (wrong == "loss") model.loss = reduce_sum(square(out), "length");
  if (wrong == "throws") throw std::runtime_error("no model today");
  if (wrong == "throws 42") throw 42;
  if (wrong == "evaluation" && partial) throw std::runtime_error("no evaluation today");
  if (wrong == "16 bits") {
    model.loss = mean_all(square(cast(out, DType::bfloat16) - 1.0));
    model.weight = {};
  }
  if (wrong == "batch") model.inputs.push_back(g.input("more", {width}, DType::float32));
  return model;
}

/// Counts up: token t is followed by t + 1.
class Counting : public DataSource {
 public:
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return 64; }
  void read(int64_t example, int field, const DataBox& box) const override {
    for (int64_t p = 0; p < box.extent[0]; ++p)
      static_cast<int32_t*>(box.data)[p * box.strides[0]] =
          static_cast<int32_t>('0' + (example + box.offset[0] + p + field) % 10);
  }

 private:
  std::vector<DataField> fields_ = {{"seen", DType::int32, {Dim("place", 6)}},
                                    {"next", DType::int32, {Dim("place", 6)}}};
};

/// A language model that looks at the last token only, with names of its own for everything.
nn::Model build_counter(Graph& g, const Config& config, int64_t size, bool partial) {
  const Dim batch = nn::batch_dim(size, partial), place("place", 6), symbols("symbols", 128),
            width("width", 16);
  Tensor seen = g.input("seen", {batch, place}, DType::int32);
  Tensor next = g.input("next", {batch, place}, DType::int32);
  Tensor x = gather(g.parameter("table", {symbols, width}, nn::normal(1)), seen, "symbols");
  for (int64_t layer = 0; layer < config.integer("model.depth"); ++layer)
    x = nn::feed_forward(x, "deep" + std::to_string(layer), "width", Dim("up", 16));
  Tensor scores =
      einsum({x, g.parameter("out", {width, symbols}, nn::zeros())}, {batch, place, symbols});
  nn::Model model{mean_all(cross_entropy(scores, next, "symbols")), scores, {seen, next}};
  if (config.text("model.says") != "nothing") model.tokens = seen;
  if (config.text("model.says") == "labels") model.tokens = model.loss;
  return model;
}

ModelSpec counter() {
  ModelSpec spec;
  spec.name = "counter";
  spec.help = "Learns to count.";
  spec.keys = {{"model.depth", "0", "Number of layers."},
               {"model.says", "all", "What it says of its tokens."}};
  spec.build = build_counter;
  spec.data = [](const Config&, bool held_out) {
    return held_out ? nullptr : std::make_unique<Counting>();
  };
  spec.tokens = [](const Config&) { return int64_t{6}; };
  spec.layout = "batch:data;symbols:model";
  spec.layers_key = "model.depth";
  return spec;
}

ModelSpec weighted() {
  ModelSpec spec;
  spec.name = "weighted";
  spec.help = "A loss per word that counts.";
  spec.keys = {{"model.metric", "right", "Name of the share of positive outputs."},
               {"model.wrong", "", "What its build does wrong."}};
  spec.build = build;
  spec.data = [](const Config& c, bool held_out) -> std::unique_ptr<DataSource> {
    if (c.text("model.wrong") == "no data") return nullptr;
    if (c.text("model.wrong") == "data throws") throw std::runtime_error("no data today");
    return std::make_unique<Words>(held_out);
  };
  spec.tokens = [](const Config&) { return kWords; };
  spec.learning_rate = [](const Config& c, int64_t step) {
    return c.text("model.wrong") == "rate" && step == 1 ? NAN : c.number("train.lr");
  };
  spec.layout = "batch:data";
  return spec;
}

/// Says nothing but its name.
ModelSpec empty() {
  ModelSpec spec;
  spec.name = "empty";
  return spec;
}

/// weighted() without data.
ModelSpec without_data() {
  ModelSpec spec = weighted();
  spec.name = "without_data";
  spec.data = {};
  return spec;
}

/// weighted() with a key that all models have.
ModelSpec taken() {
  ModelSpec spec = weighted();
  spec.name = "taken";
  spec.keys.push_back({"train.lr", "8", "A rate of its own."});
  return spec;
}

/// 200 examples of the words above, one of which is 50 times as large.
class SpikingWords : public Words {
 public:
  explicit SpikingWords(int64_t large) : Words(false), large_(large) {}
  int64_t examples() const override { return 200; }
  void read(int64_t example, int field, const DataBox& box) const override {
    Words::read(example, field, box);
    for (int64_t i = 0; field == 0 && example == large_ && i < box.extent[0] * box.extent[1]; ++i)
      static_cast<float*>(
          box.data)[i / box.extent[1] * box.strides[0] + i % box.extent[1] * box.strides[1]] *= 50;
  }

 private:
  int64_t large_;
};

ModelSpec spikes() {
  ModelSpec spec = weighted();
  spec.name = "spikes";
  spec.help = "One example is far from the others.";
  spec.keys.push_back({"model.large", "3", "Which one."});
  spec.keys.push_back(
      {"model.jump", "0", "From which step on the rate is 10,000 times lr; 0: none."});
  spec.learning_rate = [](const Config& c, int64_t step) {
    const int64_t jump = c.integer("model.jump");
    return c.number("train.lr") * (jump > 0 && step >= jump ? 1e4 : 1);
  };
  spec.data = [](const Config& c, bool held_out) -> std::unique_ptr<DataSource> {
    if (held_out) return nullptr;
    return std::make_unique<SpikingWords>(c.integer("model.large"));
  };
  return spec;
}

/// Where and when a rank of the model "hangs" does not go on.
struct Hang {
  std::string where;
  int64_t rank = 0, step = 0;
} hang;

/// Copies its operand, and counts its calls on the rank that hangs.
void hang_or_copy(const HostCall& call) {
  static std::atomic<int64_t> calls{0};
  const HostDim& batch = call.dims[0];
  if (hang.where == "op" && batch.offset == hang.rank * batch.size && ++calls == hang.step)
    sleep_for_ever();
  call.each(
      [&](std::span<const int64_t> i) { call.out[0].at<float>(i) = call.in[0].at<float>(i); });
}

constinit const Op kMayHang = {
    .name = "may_hang",
    .infer = [](const OpCall& call) { return std::vector<ValueType>{call.in[0]}; },
    .gradient = [](const GradCall& call) { return call.grads; },
    .host = hang_or_copy};

/// The words above, whose reader may hang in the process of the rank.
class HangingWords : public Words {
 public:
  using Words::Words;
  void read(int64_t example, int field, const DataBox& box) const override {
    const char* rank = std::getenv("OMPI_COMM_WORLD_RANK");
    const bool is_here = rank == nullptr || std::atoll(rank) == hang.rank;
    if (hang.where == "data" && is_here && field == 0 && ++reads_ > 6 * (hang.step - 1))
      sleep_for_ever();
    Words::read(example, field, box);
  }

 private:
  mutable std::atomic<int64_t> reads_{0};
};

ModelSpec hangs() {
  ModelSpec spec = weighted();
  spec.name = "hangs";
  spec.learning_rate = {};
  spec.help = "A rank hangs in a step.";
  spec.keys = {{"model.where", "op", "Where: op, data."},
               {"model.rank", "1", "Which rank."},
               {"model.step", "2", "In which step."}};
  spec.build = [](Graph& g, const Config& config, int64_t size, bool partial) {
    hang = {config.text("model.where"), config.integer("model.rank"), config.integer("model.step")};
    const Dim batch = nn::batch_dim(size, partial), length("length", kWords),
              width("width", kWidth);
    nn::Model model;
    Tensor words = g.input("words", {batch, length, width}, DType::float32);
    Tensor mask = g.input("mask", {batch, length}, DType::float32);
    Tensor same = partial ? words : g.add(kMayHang, {words}, {}, Loc::current())[0];
    model.loss = mean_all(square(nn::dense(same, "out", {"width"}, {}) - mask)).named("loss");
    model.inputs = {words, mask};
    return model;
  };
  spec.data = [](const Config&, bool held_out) -> std::unique_ptr<DataSource> {
    if (held_out) return nullptr;
    return std::make_unique<HangingWords>(false);
  };
  return spec;
}

/// counter() with a key that it has not.
ModelSpec lost() {
  ModelSpec spec = counter();
  spec.name = "lost";
  spec.layers_key = "model.layers";
  return spec;
}

}  // namespace

int main(int argc, char** argv) {
  return run_cli(
      argc, argv,
      {weighted(), spikes(), hangs(), counter(), lost(), empty(), without_data(), taken()});
}
