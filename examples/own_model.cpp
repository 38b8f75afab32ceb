// The whole command line for a user-defined model, data source, optimizer and learning rate:
//   example_own_model train own --steps 200 --mesh "data:2;model:2"
//   example_own_model verify own --mesh "a:2;b:2"
//   example_own_model explain own --mesh "data:4;model:2"
// A small network learns the height of waves at points of a plane.
#include <cmath>

#include "tessera/cli.h"
#include "tessera/tessera.h"
using namespace tessera;

namespace {

/// Example i is a point on a spiral in the plane, and the height of the waves there.
class Waves : public DataSource {
 public:
  explicit Waves(bool held_out) : shift_(held_out ? 0.5 : 0.0) {}
  const std::vector<DataField>& fields() const override { return fields_; }
  int64_t examples() const override { return 1000; }
  void read(int64_t example, int field, const DataBox& box) const override {
    const double t = static_cast<double>(example) + shift_, radius = std::sqrt(t / 1000);
    const double point[2] = {radius * std::cos(2.4 * t), radius * std::sin(2.4 * t)};
    auto* to = static_cast<float*>(box.data);
    if (field == 1) {
      *to = static_cast<float>(std::sin(4 * point[0]) * point[1]);
      return;
    }
    for (int64_t i = 0; i < box.extent[0]; ++i)
      to[i * box.strides[0]] = static_cast<float>(point[box.offset[0] + i]);
  }

 private:
  std::vector<DataField> fields_ = {{"points", DType::float32, {Dim("coords", 2)}},
                                    {"heights", DType::float32, {}}};
  double shift_;
};

nn::Model build(Graph& g, const Config& config, int64_t size, bool partial) {
  const Dim batch = nn::batch_dim(size, partial), coords("coords", 2);
  const Dim hidden("hidden", config.integer("model.hidden"));
  const std::string& name = config.text("train.dtype");  // of --dtype
  const DType dtype = name == "float8" ? DType::bfloat16 : parse_dtype(name.c_str());
  Tensor points = g.input("points", {batch, coords}, DType::float32);
  Tensor heights = g.input("heights", {batch}, DType::float32);
  Tensor bent = tanh(nn::dense(cast(points, dtype), "in", {"coords"}, {hidden}, true, 3));
  Tensor out = nn::dense(bent, "out", {"hidden"}, {});
  // The loss in float32 or wider: a mean of many squares in 16 bits is no good number.
  Tensor error =
      dtype == DType::float64 ? out - cast(heights, dtype) : cast(out, DType::float32) - heights;
  Tensor loss = mean_all(square(error)).named("loss");
  nn::Model model{loss, out, {points, heights}};
  model.metrics = {{"mean_error", mean_all(abs(error))}};  // in the log, beside the loss
  return model;
}

/// Steps of constant size: the sign of a moving average of the gradients (Chen et al. 2023,
/// "Lion").
void lion(Graph& g, Tensor parameter, Tensor gradient, Tensor lr, Tensor) {
  Tensor mean =
      g.state(parameter.name() + ".mean", parameter.shape(), nn::zeros(), parameter.dtype());
  g.update(parameter, parameter - lr * sign(0.9 * mean + 0.1 * gradient));
  g.update(mean, 0.99 * mean + 0.01 * gradient);
}

ModelSpec own_model() {
  ModelSpec spec;
  spec.name = "own";
  spec.help = "A network that learns the heights of waves.";
  spec.keys = {{"model.hidden", "64", "Width of the hidden layer."}};
  spec.build = build;
  spec.data = [](const Config&, bool held_out) { return std::make_unique<Waves>(held_out); };
  spec.tokens = [](const Config&) { return int64_t{1}; };
  spec.tiny = {{"model.hidden", "10"}};
  spec.layout = "batch:data;hidden:model";
  spec.optimizer = [](const Config&) -> Optimizer { return lion; };
  spec.learning_rate = [](const Config& config, int64_t step) {
    return config.number("train.lr") / (1 + static_cast<double>(step) / 100);
  };
  return spec;
}

}  // namespace

int main(int argc, char** argv) { return run_cli(argc, argv, {own_model()}); }
