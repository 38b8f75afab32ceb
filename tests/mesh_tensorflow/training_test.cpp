// Optimizers and learning rates against what Mesh TensorFlow makes of the same gradients.
#include <cmath>

#include "mesh_tensorflow/layers.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Rows = std::map<std::string, Optimizer>;

Rows optimizers() {
  Rows rows;
  rows["sgd"] = rows["sgd_clipped"] = sgd();
  rows["momentum"] = rows["momentum_scheduled"] = momentum({.rate_in_velocity = true});
  AdamOptions o{.beta2 = 0.999, .eps = 1e-6, .bias_correction = false, .decay_all = true};
  rows["adam"] = adam(o);
  o.weight_decay = 0.05;
  o.no_decay = {"p"};
  rows["adam_no_decay"] = adam(o);
  o.no_decay = {};
  o.beta1 = 0.8;
  o.beta2 = 0.95;
  o.eps = 1e-3;
  rows["adam_decay"] = adam(o);
  return rows;
}

Rows adafactors() {
  Rows rows;
  const auto add = [&](const std::string& name, const AdafactorOptions& o) {
    rows["adafactor" + name] = adafactor(o);
  };
  AdafactorOptions one;
  add("", one);
  add("_never_factored", one);
  one.relative_step = true;
  add("_relative", one);
  one.unscaled = {"p"};
  add("_relative_unscaled", one);
  one.relative_step = false;
  add("_unscaled", one);
  add("_relative_no_scale", {.scale_by_parameter = false, .relative_step = true});
  const auto factored = [&](const std::string& name, AdafactorOptions o) {
    o.factor_from = 2;
    add(name, o);
  };
  for (const char* name : {"_factored", "_square", "_three_dims"}) factored(name, {});
  factored("_beta1", {.beta1 = 0.9});
  factored("_clip", {.clip = 0.3});
  factored("_no_clip", {.clip = 0});
  factored("_no_scale", {.scale_by_parameter = false});
  factored("_stacked", {.clip = 0, .stacked = {"layers"}});
  factored("_stacked_vector", {.clip = 0, .stacked = {"layers"}});
  factored("_epsilons", {.eps1 = 1e-2, .eps2 = 2});
  factored("_constant_decay", {.decay = 0.7});
  add("_decay_as_adam", {.beta2 = 0.9});
  add("_decay_by_power", {.decay_exponent = 0.5, .decay_offset = -3});
  return rows;
}

Array row_of(const Array& x, int64_t row) {
  Array y(x.dtype, {x.dims.begin() + 1, x.dims.end()}, {x.sizes.begin() + 1, x.sizes.end()});
  std::copy_n(x.bytes.begin() + row * static_cast<int64_t>(y.bytes.size()), y.bytes.size(),
              y.bytes.begin());
  return y;
}

void check_steps(const std::string& name, const Optimizer& optimizer, const std::string& mesh_text,
                 const std::string& layout) {
  INFO(name << " on " << mesh_text << " with \"" << layout << "\"");
  const MtfValues& values = MtfValues::all();
  const std::string row = "optimizer." + name;
  const Array first = values.at(row + "/in/first"), gradients = values.at(row + "/in/gradients"),
              rates = values.at(row + "/in/rates"), made = values.at(row + "/out/p");
  std::vector<Dim> dims;
  for (size_t i = 0; i < first.dims.size(); ++i) dims.emplace_back(first.dims[i], first.sizes[i]);
  Graph g;
  Tensor p = g.parameter("p", Shape(dims), nn::normal(1));
  Tensor rate = g.input("rate", {}, DType::float32);
  Tensor loss = sum_all(p * g.input("gradient", Shape(dims), DType::float32)).named("loss");
  minimize(loss, rate, optimizer, {.clip = name == "sgd_clipped" ? 0.8 : 0});
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster cluster = Cluster::threads(mesh.size());
  Session session(g, cluster, {mesh, Layout::parse(layout), {{"train", {loss}, true}}});
  session.assign("p", first);
  for (int64_t step = 0; step < made.sizes[0]; ++step) {
    session.feed("gradient", row_of(gradients, step));
    session.feed("rate", row_of(rates, step));
    session.run("train");
    check_mtf("step " + std::to_string(step), session.fetch("p"), row_of(made, step));
  }
  for (const std::string& slot : values.names(row, "after"))
    check_mtf(slot, session.fetch("optimizer.p." + slot), values.at(row + "/after/" + slot));
}

TEST_CASE("optimizers make the steps that they make in Mesh TensorFlow", "[mtf]") {
  Rows rows = optimizers();
  rows.merge(adafactors());
  std::vector<std::string> known, recorded;
  for (const auto& [name, optimizer] : rows) known.push_back("optimizer." + name);
  for (const std::string& name : MtfValues::all().cases()) {
    if (name.compare(0, 10, "optimizer.") == 0) recorded.push_back(name);
  }
  CHECK(known == recorded);
  for (const auto& [name, optimizer] : rows) {
    check_steps(name, optimizer, "x:1", "");
    check_steps(name, optimizer, "x:2;y:2", "a:x;b?:y");
    check_steps(name, optimizer, "x:3", "@state a:x");
  }
}

// A step of ours is never of rate 0: the rise of a warmup is one step ahead of Mesh TensorFlow's.
TEST_CASE("learning rates are those of Mesh TensorFlow", "[mtf]") {
  const auto check = [](const std::string& name, const Schedule& schedule, int64_t rise = 0) {
    const Array want = MtfValues::all().at("schedule." + name + "/out/rates");
    for (int64_t step = 0; step < want.sizes[0]; ++step) {
      const int64_t ahead = step < rise ? 1 : 0;
      INFO(name << " step " << step);
      CHECK(schedule.at(step) == Approx(want.at(step + ahead)).epsilon(1e-6).margin(1e-9));
    }
  };
  const double sixth = std::sqrt(1.0 / 6), share = 1.0 / 32;
  check("constant", {.kind = "constant", .lr = 0.3});
  check("warmup", {.kind = "constant", .lr = 0.3, .warmup = 6}, 6);
  check("linear_to_zero", {.kind = "linear", .lr = 0.3, .steps = 20, .floor = 0});
  check("linear_decay", {.kind = "constant", .lr = 0.3, .steps = 20, .cooldown = 0.3});
  check("rsqrt", {.kind = "rsqrt", .lr = 0.3 * sixth, .flat = 6});
  check("noam", {.kind = "rsqrt", .lr = 0.3 * sixth, .steps = 20, .flat = 6, .cooldown = 0.25});
  check("slanted_triangular",
        {.kind = "linear", .lr = 0.3, .warmup = 5, .steps = 20, .floor = share, .start = share}, 5);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
