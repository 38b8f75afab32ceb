// Optimizers against plain loops over one parameter, in float64, and under layouts.
#include <cmath>
#include <map>

#include "optim/state.h"
#include "support/catch.h"
#include "support/expect_error.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr int kSteps = 4;
using Values = std::vector<double>;

/// A parameter of rows x cols, its gradients of every step, and what an optimizer makes of it.
struct Trial {
  int64_t rows, cols;
  Values first;
  std::vector<Values> gradients;

  Trial(int64_t rows, int64_t cols) : rows(rows), cols(cols) {
    for (int64_t i = 0; i < rows * cols; ++i) first.push_back(std::sin(0.7 * i + 0.3) * 0.8);
    for (int t = 0; t < kSteps; ++t) {
      gradients.emplace_back();
      for (int64_t i = 0; i < rows * cols; ++i)
        gradients.back().push_back(std::cos(1.3 * i + 2.1 * t) * (0.1 + 0.03 * (i % 7)));
    }
  }
  Array array(const Values& values) const {
    Array a(DType::float64, {"a", "b"}, {rows, cols});
    for (size_t i = 0; i < values.size(); ++i) a.data<double>()[i] = values[i];
    return a;
  }
};

struct Trained {
  Values parameter;
  std::map<std::string, Array> state;
};

Trained train(const Trial& trial, const Optimizer& optimizer, double lr,
              const std::string& mesh_text = "x:1", const std::string& layout = "",
              int steps = kSteps) {
  Graph g;
  const Dim a("a", trial.rows), b("b", trial.cols);
  Tensor p = g.parameter("p", {a, b}, nn::normal(1), DType::float64);
  Tensor gradient = g.input("gradient", {a, b}, DType::float64);
  Tensor loss = sum_all(p * gradient).named("loss");
  minimize(loss, constant(g, lr, DType::float64), optimizer);
  const Mesh mesh = Mesh::parse(mesh_text);
  Cluster cluster = Cluster::threads(mesh.size());
  Session session(g, cluster, {mesh, Layout::parse(layout), {{"train", {loss}, true}}});
  session.assign("p", trial.array(trial.first));
  for (int t = 0; t < steps; ++t) {
    session.feed("gradient", trial.array(trial.gradients[t]));
    session.run("train");
  }
  Trained result;
  for (const std::string& name : session.program().stored_names())
    result.state[name] = session.fetch(name);
  for (int64_t i = 0; i < trial.rows * trial.cols; ++i)
    result.parameter.push_back(result.state.at("p").at(i));
  return result;
}

double mean_square(const Values& x) {
  double sum = 0;
  for (double v : x) sum += v * v;
  return sum / static_cast<double>(x.size());
}

using Step = std::function<void(const Trial&, Values& p, const Values& g, int t)>;

void check_same(const Values& got, const Values& want, double tolerance = 1e-12) {
  REQUIRE(got.size() == want.size());
  for (size_t i = 0; i < got.size(); ++i) {
    INFO("element " << i);
    REQUIRE(got[i] == Approx(want[i]).epsilon(tolerance).margin(tolerance));
  }
}

void check_steps(const Optimizer& optimizer, double lr, const Step& step, int64_t rows = 5,
                 int64_t cols = 7) {
  const Trial trial(rows, cols);
  Values p = trial.first;
  for (int t = 0; t < kSteps; ++t) step(trial, p, trial.gradients[t], t + 1);
  const Values one = train(trial, optimizer, lr).parameter;
  check_same(one, p);
  for (const auto& [mesh, layout] :
       std::vector<std::pair<const char*, const char*>>{{"x:2", "a:x"},
                                                        {"x:3", "b:x"},
                                                        {"x:2", "@state a:x"},
                                                        {"x:2;y:2", "a:x;b:y"},
                                                        {"x:2;y:2", "a:x; @grads b:y"},
                                                        {"x:2;y:2", "b:y+x"},
                                                        {"x:2;y:2", "@params a:x; @state b:y"}}) {
    INFO(mesh << " " << layout);
    check_same(train(trial, optimizer, lr, mesh, layout).parameter, one);
  }
}

struct Moments {
  Values m, v;
  explicit Moments(const Trial& trial) : m(trial.first.size(), 0), v(m) {}
  /// m / (sqrt(v) + eps), with or without correction, for element i.
  double change(size_t i, double g, double b1, double b2, double eps, int t, bool corrected) {
    m[i] = b1 * m[i] + (1 - b1) * g;
    v[i] = b2 * v[i] + (1 - b2) * g * g;
    const double ms = corrected ? 1 - std::pow(b1, t) : 1, vs = corrected ? 1 - std::pow(b2, t) : 1;
    return m[i] / ms / (std::sqrt(v[i] / vs) + eps);
  }
};

/// Adafactor's moment of a matrix as the paper has it: row sums times column sums over all.
Values normalized_by_factors(const Trial& trial, const Values& g, double decay, Values& row,
                             Values& column) {
  const size_t m = trial.rows, n = trial.cols;
  Values of_row(m, 0), of_column(n, 0);
  for (size_t i = 0; i < m * n; ++i) {
    of_row[i / n] += g[i] * g[i] + 1e-30;
    of_column[i % n] += g[i] * g[i] + 1e-30;
  }
  row.resize(m), column.resize(n);
  double all = 0;
  for (size_t i = 0; i < m; ++i) row[i] = decay * row[i] + (1 - decay) * of_row[i], all += row[i];
  for (size_t j = 0; j < n; ++j) column[j] = decay * column[j] + (1 - decay) * of_column[j];
  Values x = g;
  for (size_t i = 0; i < m * n; ++i) x[i] /= std::sqrt(row[i / n] * column[i % n] / all);
  return x;
}

void apply_adafactor(Values& p, Values x, double lr, double clip, bool scaled) {
  const double excess = clip > 0 ? std::max(1.0, std::sqrt(mean_square(x)) / clip) : 1;
  const double size = scaled ? lr * std::max(std::sqrt(mean_square(p)), 1e-3) : lr;
  for (size_t i = 0; i < p.size(); ++i) p[i] -= x[i] / excess * size;
}

/// The parameter and gradient of Mesh TensorFlow's own figures.
struct Upstream : Trial {
  Upstream() : Trial(2, 3) {
    first = {1, 2, 3, 4, 5, 6};
    gradients[0] = {.1, .2, .3, .4, -.5, .6};
  }
};

void check_upstream(const Optimizer& optimizer, double lr, const Values& want) {
  check_same(train(Upstream(), optimizer, lr, "x:1", "", 1).parameter, want, 1e-6);
  check_same(train(Upstream(), optimizer, lr, "x:2;y:2", "a:x;b:y", 1).parameter, want, 1e-6);
}

TEST_CASE("sgd and momentum, step by step") {
  check_steps(sgd(0.01), 0.1, [](const Trial&, Values& p, const Values& g, int) {
    for (size_t i = 0; i < p.size(); ++i) p[i] -= 0.1 * (g[i] + 0.01 * p[i]);
  });
  Values v(35, 0);
  check_steps(momentum(0.9), 0.1, [&](const Trial&, Values& p, const Values& g, int) {
    for (size_t i = 0; i < p.size(); ++i) v[i] = 0.9 * v[i] + g[i], p[i] -= 0.1 * v[i];
  });
}

TEST_CASE("adam with and without bias correction, step by step") {
  for (bool corrected : {true, false}) {
    Moments moments(Trial(5, 7));
    const AdamOptions options = {.weight_decay = 0.02, .bias_correction = corrected};
    check_steps(adam(options), 0.05, [&](const Trial&, Values& p, const Values& g, int t) {
      for (size_t i = 0; i < p.size(); ++i)
        p[i] -= 0.05 * (moments.change(i, g[i], 0.9, 0.95, 1e-8, t, corrected) + 0.02 * p[i]);
    });
  }
}

TEST_CASE("lamb and lion, step by step") {
  Moments moments(Trial(5, 7));
  check_steps(lamb({.weight_decay = 0.1}), 0.02,
              [&](const Trial&, Values& p, const Values& g, int t) {
                Values u(p.size());
                for (size_t i = 0; i < p.size(); ++i)
                  u[i] = moments.change(i, g[i], 0.9, 0.999, 1e-6, t, true) + 0.1 * p[i];
                const double ratio = std::sqrt(mean_square(p) / mean_square(u));
                for (size_t i = 0; i < p.size(); ++i) p[i] -= 0.02 * ratio * u[i];
              });
  Values m(35, 0);
  check_steps(lion({.weight_decay = 0.1}), 0.01,
              [&](const Trial&, Values& p, const Values& g, int) {
                for (size_t i = 0; i < p.size(); ++i) {
                  const double c = 0.9 * m[i] + 0.1 * g[i];
                  p[i] -= 0.01 * ((c > 0) - (c < 0) + 0.1 * p[i]);
                  m[i] = 0.99 * m[i] + 0.01 * g[i];
                }
              });
}

TEST_CASE("lamb takes a ratio of one where a norm is zero") {
  Trial trial(2, 3);
  trial.first.assign(6, 0);
  trial.gradients.assign(kSteps, Values(6, 0));
  trial.gradients[0] = {.1, .2, .3, .4, -.5, .6};
  const Values p = train(trial, lamb(), 0.5, "x:1", "", 1).parameter;
  for (size_t i = 0; i < 6; ++i) CHECK(std::abs(p[i]) == Approx(0.5).epsilon(1e-4));
  trial.gradients[0].assign(6, 0);
  check_same(train(trial, lamb(), 0.5).parameter, Values(6, 0));
}

TEST_CASE("adafactor, step by step, factored or not, for either larger dim") {
  for (auto [rows, cols] : std::vector<std::pair<int64_t, int64_t>>{{5, 7}, {7, 5}, {6, 6}}) {
    Values row, column, v(rows * cols, 0);
    check_steps(
        adafactor({.factor_from = 5}), 0.05,
        [&](const Trial& trial, Values& p, const Values& g, int t) {
          const double decay = 1 - std::pow(t, -0.8);
          apply_adafactor(p, normalized_by_factors(trial, g, decay, row, column), 0.05, 1, true);
        },
        rows, cols);
    check_steps(
        adafactor({.beta2 = 0.99, .clip = 0, .scale_by_parameter = false}), 0.05,
        [&](const Trial&, Values& p, const Values& g, int t) {
          const double decay = 0.99 * (1 - std::pow(0.99, t - 1)) / (1 - std::pow(0.99, t));
          Values x = g;
          for (size_t i = 0; i < x.size(); ++i) {
            v[i] = decay * v[i] + (1 - decay) * (g[i] * g[i] + 1e-30);
            x[i] /= std::sqrt(v[i]);
          }
          apply_adafactor(p, x, 0.05, 0, false);
        },
        rows, cols);
  }
}

TEST_CASE("adafactor's momentum is the mean of its updates, its relative step the paper's") {
  Values v(35, 0), m(35, 0);
  check_steps(adafactor({.beta1 = 0.8, .relative_step = true}), 2,
              [&](const Trial&, Values& p, const Values& g, int t) {
                Values x = g;
                const double decay = 1 - std::pow(t, -0.8);
                for (size_t i = 0; i < x.size(); ++i) {
                  v[i] = decay * v[i] + (1 - decay) * (g[i] * g[i] + 1e-30);
                  x[i] /= std::sqrt(v[i]);
                }
                Values moved = p;
                apply_adafactor(moved, x, 2 * 0.01, 1, true);
                for (size_t i = 0; i < p.size(); ++i) {
                  m[i] = 0.8 * m[i] + 0.2 * (p[i] - moved[i]);
                  p[i] -= m[i];
                }
              });
}

TEST_CASE("adafactor keeps vectors for matrices, and stacked parameters apart") {
  const Trial trial(5, 7);
  const auto state = train(trial, adafactor({.factor_from = 5}), 0.05, "x:2", "b:x").state;
  CHECK(state.at("optimizer.p.adafactor_row").sizes == std::vector<int64_t>{5});
  CHECK(state.at("optimizer.p.adafactor_column").sizes == std::vector<int64_t>{7});
  CHECK(state.count("optimizer.p.adafactor_v") == 0);
  const auto whole = train(trial, adafactor({.factor_from = 6}), 0.05).state;
  CHECK(whole.at("optimizer.p.adafactor_v").sizes == std::vector<int64_t>{5, 7});
  // Stacked along a, each row is a parameter of its own.
  const Values stacked =
      train(trial, adafactor({.factor_from = 5, .stacked = {"a"}}), 0.05).parameter;
  for (int64_t r = 0; r < trial.rows; ++r) {
    Trial alone(1, 7);
    const auto take = [&](const Values& from) {
      return Values(from.begin() + r * 7, from.begin() + (r + 1) * 7);
    };
    alone.first = take(trial.first);
    for (int t = 0; t < kSteps; ++t) alone.gradients[t] = take(trial.gradients[t]);
    check_same(train(alone, adafactor(), 0.05).parameter, take(stacked));
  }
}

TEST_CASE("one step of each optimizer as measured on Mesh TensorFlow") {
  check_upstream(sgd(), 0.1, {.99, 1.98, 2.97, 3.96, 5.05, 5.94});
  check_upstream(
      adam({.beta2 = 0.999, .eps = 1e-6, .weight_decay = 0.01, .bias_correction = false}), 0.1,
      {.6828722, 1.68182223, 2.68080556, 3.67979723, 5.31120777, 5.6777889});
  check_upstream(adafactor({.relative_step = true}), 1,
                 {.9610556, 1.9610556, 2.9610556, 3.9610556, 5.0389444, 5.9610556});
  check_upstream(adafactor({.factor_from = 2, .relative_step = true}), 1,
                 {.97591885, 1.96312494, 2.95559655, 3.95892705, 5.03930895, 5.96213261});
  check_upstream(adafactor({.factor_from = 2, .scale_by_parameter = false}), 0.1,
                 {.93816531, 1.90531358, 2.88598246, 3.89453439, 5.10093606, 5.90276551});
  const auto state = train(Upstream(), adafactor({.factor_from = 2}), 0.1, "x:1", "", 1).state;
  check_same(
      {state.at("optimizer.p.adafactor_row").at(0), state.at("optimizer.p.adafactor_row").at(1)},
      {.04666667, .25666667}, 1e-6);
}

TEST_CASE("parameters have learning rates of their own, the first match counts") {
  Graph g;
  const Dim a("a", 5);
  std::vector<Tensor> p;
  Tensor loss;
  for (const char* name : {"embedding", "layer.w", "layer.b"}) {
    p.push_back(g.parameter(name, Shape{a}, nn::zeros(), DType::float64));
    loss = loss.empty() ? sum_all(p.back()) : loss + sum_all(p.back());
  }
  Tensor slow = g.input("slow", {}, DType::float64);
  minimize(loss.named("loss"), constant(g, 0.5, DType::float64),
           with_rates(sgd(), {{"*.b", 3}, {"layer*", 1, slow}}));
  Cluster cluster = Cluster::threads(2);
  Session session(g, cluster,
                  {Mesh::parse("x:2"), Layout::parse("a:x"), {{"train", {loss}, true}}});
  Array value(DType::float64, {}, {});
  value.data<double>()[0] = 0.25;
  session.feed("slow", value);
  session.run("train");
  CHECK(session.fetch("embedding").at(4) == -0.5);
  CHECK(session.fetch("layer.w").at(4) == -0.125);
  CHECK(session.fetch("layer.b").at(4) == -1.5);
  expect_usage({"with_rates", "'layr*'", "layer.w"}, [&] {
    Graph other;
    Tensor w = other.parameter("layer.w", Shape{a}, nn::zeros());
    minimize(sum_all(w), constant(other, 1), with_rates(sgd(), {{"layr*", 2}}));
  });
}

TEST_CASE("what a glob names does not decay") {
  const Trial trial(3, 4);
  const AdamOptions decays = {.weight_decay = 0.5},
                    keeps = {.weight_decay = 0.5, .no_decay = {"p*"}};
  check_same(train(trial, adam(keeps), 0.1).parameter, train(trial, adam(), 0.1).parameter);
  CHECK(train(trial, adam(decays), 0.1).parameter[0] != train(trial, adam(), 0.1).parameter[0]);
}

TEST_CASE("a glob of a fused weight names its parts, and nothing else") {
  Graph g;
  const auto is_named = [&](const std::string& name) {
    return optim::any_match({"*.qkv.weight"}, g.parameter(name, Shape{Dim("n", 2)}, nn::zeros()));
  };
  for (const char* name : {"b.qkv.weight", "b.qkv.weight.part0", "b.qkv.weight.part12"})
    CHECK(is_named(name));
  for (const char* name : {"b.qkv.weight.part", "b.qkv.weight.part0.scale", "b.qkv.weight.parted",
                           "b.qkv.weight.apart1", "b.qkv.weight1"})
    CHECK_FALSE(is_named(name));
  Tensor part = g.parameter("c.qkv.weight.part1", Shape{Dim("n", 2)}, nn::zeros());
  Tensor loss = sum_all(part).named("loss");
  minimize(loss, constant(g, 1), with_rates(sgd(), {{"c.qkv.weight", 3}}));
  Cluster cluster = Cluster::threads(1);
  Session session(g, cluster, {Mesh::parse("a:1"), {}, {{"train", {loss}, true}}});
  session.run("train");
  CHECK(session.fetch("c.qkv.weight.part1").at(0) == -3);
}

TEST_CASE("vectors decay where all parameters do") {
  for (const bool all : {false, true}) {
    Graph g;
    Tensor p = g.parameter("p", {Dim("n", 3)}, [](Graph& graph, const Shape& shape, DType t) {
      return constant(graph, 1, t, shape);
    });
    Tensor loss = sum_all(p * 0.0).named("loss");
    minimize(loss, constant(g, 0.1), adam({.weight_decay = 0.5, .decay_all = all}));
    Cluster cluster = Cluster::threads(1);
    Session session(g, cluster, {Mesh::parse("a:1"), {}, {{"train", {loss}, true}}});
    session.run("train");
    CHECK(session.fetch("p").at(2) == Approx(all ? 0.95 : 1));
  }
}

/// x of rows by cols with singular values near 1, by five iterations on the side of the rows.
Values orthogonalized(Values x, size_t rows, size_t cols) {
  const double norm = std::sqrt(mean_square(x) * static_cast<double>(x.size())) + 1e-7;
  for (double& v : x) v /= norm;
  const auto product = [](const Values& a, const Values& b, size_t n, size_t k, size_t m) {
    Values c(n * m, 0);
    for (size_t i = 0; i < n; ++i)
      for (size_t j = 0; j < m; ++j)
        for (size_t l = 0; l < k; ++l) c[i * m + j] += a[i * k + l] * b[l * m + j];
    return c;
  };
  for (int t = 0; t < 5; ++t) {
    Values turned(x.size());
    for (size_t i = 0; i < rows; ++i)
      for (size_t j = 0; j < cols; ++j) turned[j * rows + i] = x[i * cols + j];
    const Values gram = product(x, turned, rows, cols, rows),
                 again = product(gram, gram, rows, rows, rows);
    Values polynomial(gram.size());
    for (size_t i = 0; i < gram.size(); ++i) polynomial[i] = -4.7750 * gram[i] + 2.0315 * again[i];
    const Values more = product(polynomial, x, rows, rows, cols);
    for (size_t i = 0; i < x.size(); ++i) x[i] = 3.4445 * x[i] + more[i];
  }
  return x;
}

TEST_CASE("muon orthogonalizes matrices, step by step and under every layout") {
  for (const bool nesterov : {true, false}) {
    Values m(35, 0);
    const MuonOptions options = {
        .weight_decay = 0.1, .nesterov = nesterov, .matrices = {"p"}, .rows = {"a"}};
    check_steps(muon(options, sgd()), 0.02, [&](const Trial&, Values& p, const Values& g, int) {
      Values u(35);
      for (size_t i = 0; i < 35; ++i) {
        m[i] = 0.95 * m[i] + 0.05 * g[i];
        u[i] = nesterov ? 0.05 * g[i] + 0.95 * m[i] : m[i];
      }
      u = orthogonalized(u, 5, 7);
      for (size_t i = 0; i < 35; ++i) p[i] -= 0.02 * (0.2 * std::sqrt(7.0) * u[i] + 0.1 * p[i]);
    });
  }
}

TEST_CASE("muon takes either side of a matrix, and its update has singular values near 1") {
  const Trial trial(7, 5);  // more rows than columns
  const MuonOptions options = {.mu = 0, .matrices = {"p"}, .rows = {"a"}};
  const Values p = train(trial, muon(options, sgd()), 1, "x:1", "", 1).parameter;
  double squares = 0;  // the sum of the squared singular values: between 5 * 0.7^2 and 5 * 1.2^2
  for (size_t i = 0; i < p.size(); ++i)
    squares += std::pow((trial.first[i] - p[i]) / (0.2 * std::sqrt(7.0)), 2);
  CHECK(squares > 5 * 0.49);
  CHECK(squares < 5 * 1.44);
}

TEST_CASE("muon orthogonalizes the layers of a loop each by itself, whole on some ranks") {
  const auto trained = [](bool scan, const char* mesh_text, const char* rules) {
    Graph g;
    nn::GptOptions o;
    o.layers = 4, o.d_model = 8, o.heads = 2, o.ff = 12, o.length = 4, o.vocab = 11, o.batch = 2;
    o.scan = scan;
    const nn::Model model = nn::gpt(g, o);
    minimize(model.to_minimize(), 0.02, muon({}, adam()));
    const Mesh mesh = Mesh::parse(mesh_text);
    Cluster ranks = Cluster::threads(mesh.size());
    Session session(g, ranks, {mesh, Layout::parse(rules), {{"f", {model.loss}, true}}, 5, 1});
    for (const Tensor& input : model.inputs)
      session.feed(input.name(), Array::of<int32_t>(input.shape(),
                                                    std::vector<int32_t>{1, 4, 9, 2, 7, 10, 3, 5}));
    std::vector<double> losses;
    for (int step = 0; step < 4; ++step) {
      session.run("f");
      losses.push_back(session.fetch_scalar(model.loss.name()));
    }
    const std::vector<std::string> names = session.program().stored_names();
    const auto has = [&](const char* name) {
      return std::find(names.begin(), names.end(), name) != names.end();
    };
    CHECK(has(scan ? "optimizer.gpt.block.mlp.up.w.muon_m"
                   : "optimizer.gpt.block3.attention.out.w.muon_m"));
    CHECK(has("optimizer.gpt.embedding.adam_m"));
    CHECK_FALSE(has("optimizer.gpt.embedding.muon_m"));
    CHECK(has(scan ? "optimizer.gpt.block.attention.query.b.adam_m"
                   : "optimizer.gpt.block0.norm1.scale.adam_m"));
    return losses;
  };
  const std::vector<double> one = trained(true, "x:1", "");
  CHECK(one[3] < one[0]);
  struct Case {
    bool scan;
    const char *mesh, *rules;
  };
  for (const Case& c : {Case{false, "x:1", ""}, Case{true, "data:2", "@state layers:data"},
                        Case{true, "data:2;model:2",
                             "batch:data;heads,ff,vocab:model;"
                             "@state layers:data"},
                        Case{true, "data:2", "batch:data; @params d_model:data"}}) {
    INFO(c.mesh << " " << c.rules);
    const std::vector<double> losses = trained(c.scan, c.mesh, c.rules);
    for (size_t i = 0; i < 4; ++i) CHECK(losses[i] == Approx(one[i]).epsilon(2e-4));
  }
}

TEST_CASE("the average of a parameter begins with its first new value") {
  const Trial trial(5, 7);
  for (const auto& [mesh, layout] : std::vector<std::pair<const char*, const char*>>{
           {"x:1", ""}, {"x:2", "@state a:x"}, {"x:2;y:2", "@params a:x; @state b:y"}}) {
    const Trained result = train(trial, with_average(sgd(), 0.75), 0.1, mesh, layout);
    Values p = trial.first, average;
    for (const Values& g : trial.gradients) {
      for (size_t i = 0; i < p.size(); ++i) p[i] -= 0.1 * g[i];
      if (average.empty()) average = p;
      for (size_t i = 0; i < p.size(); ++i) average[i] = 0.75 * average[i] + 0.25 * p[i];
    }
    check_same(result.parameter, p);
    const Array& ema = result.state.at("optimizer.p.ema");
    for (size_t i = 0; i < p.size(); ++i)
      CHECK(ema.at(static_cast<int64_t>(i)) == Approx(average[i]));
  }
}

TEST_CASE("what muon and averages refuse", "[errors]") {
  const auto of = [](const MuonOptions& o) {
    Graph g;
    Tensor p = g.parameter("p", {Dim("a", 2), Dim("b", 3)}, nn::normal(1));
    minimize(sum_all(p), 0.1, muon(o, sgd()));
  };
  expect_usage({"[muon] matrices: no parameter is named like '*block*'"}, [&] { of({}); });
  expect_usage({"[muon] no parameter named like 'p' is a matrix with the rows 'd_model'; name the "
                "dims of one side of the matrices in MuonOptions::rows"},
               [&] { of({.matrices = {"p"}}); });
  expect_usage({"[muon] 0 iterations of Newton-Schulz; there are 1 to 100"},
               [&] { of({.iterations = 0}); });
  expect_usage({"[muon] mu is 1; it must be in [0, 1)"}, [&] { of({.mu = 1}); });
  expect_usage({"the optimizer of the other parameters is an empty function"},
               [&] { muon({}, {}); });
  expect_usage({"[with_average] the optimizer is an empty function"},
               [&] { with_average({}, 0.9); });
  expect_usage({"[with_average] decay is 1; it must be in [0, 1)"},
               [&] { with_average(sgd(), 1); });
}

TEST_CASE("bias corrections and decays near 1 keep the digits of float32") {
  for (const int64_t t : {1, 2, 17, 1000, 1000000}) {
    for (const double beta : {0.5, 0.9, 0.999, 0.99999, 0.9999999}) {
      Graph g({.eager = true});
      const Tensor step = constant(g, static_cast<double>(t), DType::float32);
      const double right = -1 / std::expm1(static_cast<double>(t) * std::log(beta));
      INFO("step " << t << ", beta " << beta);
      CHECK(g.fetch(optim::bias_correction(step, beta)).at(0) == Approx(right).epsilon(1e-6));
    }
  }
}

TEST_CASE("steps are counted beyond those that float32 can tell apart") {
  Graph g;
  const Tensor p = g.parameter("p", {Dim("a", 2)}, nn::ones());
  const Tensor loss = sum_all(square(p)).named("loss");
  minimize(loss, constant(g, 0.0), adam());
  Cluster ranks = Cluster::threads(1);
  Session session(g, ranks, {Mesh::parse("x:1"), Layout(), {{"train", {loss}, true}}});
  session.assign("optimizer.step", Array::of<int64_t>(Shape{}, {int64_t{1} << 24}));
  for (int64_t i = 1; i < 4; ++i) {
    session.run("train");
    CHECK(session.fetch("optimizer.step").data<int64_t>()[0] == (int64_t{1} << 24) + i);
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
