#include "tessera/testing.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <random>

#include "base/fail.h"
#include "base/float16.h"
#include "tessera/explain.h"
#include "tessera/ops.h"
#include "tessera/session.h"

namespace tessera::testing {

namespace {

void set_number(Array& array, int64_t i, double x) {
  switch (array.dtype) {
    case DType::float32:
      array.data<float>()[i] = static_cast<float>(x);
      break;
    case DType::float64:
      array.data<double>()[i] = x;
      break;
    case DType::bfloat16:
      array.data<uint16_t>()[i] = to_bfloat16(static_cast<float>(x)).bits;
      break;
    case DType::float16:
      array.data<uint16_t>()[i] = to_float16(static_cast<float>(x)).bits;
      break;
    case DType::int32:
      array.data<int32_t>()[i] = static_cast<int32_t>(x);
      break;
    case DType::int64:
      array.data<int64_t>()[i] = static_cast<int64_t>(x);
      break;
    case DType::uint8:
    case DType::bool_:
      array.data<uint8_t>()[i] = static_cast<uint8_t>(x);
      break;
  }
}

std::vector<double> numbers(const Array& array) {
  std::vector<double> all;
  for (int64_t i = 0; i < array.elements(); ++i) all.push_back(array.at(i));
  return all;
}

/// The largest difference, as a share of the largest expected number (or of `least`).
double relative_error(const std::vector<double>& got, const std::vector<double>& expected,
                      double least = 1e-30) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double worst = 0, scale = least;
  for (size_t i = 0; i < got.size(); ++i) {
    if (got[i] == expected[i] || (std::isnan(got[i]) && std::isnan(expected[i]))) continue;
    const double difference = std::abs(got[i] - expected[i]);
    if (!std::isfinite(difference)) return std::numeric_limits<double>::infinity();
    worst = std::max(worst, difference);
  }
  for (double x : expected) scale = std::max(scale, std::isfinite(x) ? std::abs(x) : 0);
  return worst / scale;
}

/// The test in one floating type: graph, operands, the loss sum(results * weights), its gradients.
class Built {
 public:
  Built(const OpTest& test, DType type, uint64_t seed) : test_(test), type_(type), random_(seed) {
    for (const OpInput& in : test.in) {
      const DType dtype = is_floating(in.dtype) ? type : in.dtype;
      operands.push_back(graph.input(in.name, in.shape, dtype));
      draw(operands.back(), in);
      if (in.differentiable && is_floating(dtype)) wrt.push_back(operands.back());
    }
    results = test.build(graph, operands);
    TESSERA_REQUIRE(!results.empty(), "[{}] the test builds no result", test.name);
    if (!wrt.empty()) add_loss();
  }

  std::vector<Tensor> outputs() const {
    std::vector<Tensor> all = results;
    if (!loss.empty()) all.push_back(loss);
    all.insert(all.end(), gradients.begin(), gradients.end());
    return all;
  }

  std::vector<FunctionSpec> functions() const {
    std::vector<FunctionSpec> all = {{"all", outputs(), false}};
    if (!loss.empty()) all.push_back({"loss", {loss}, false});
    return all;
  }

  std::unique_ptr<Session> compile(Cluster& cluster, const Mesh& mesh, const Layout& layout) const {
    CompileOptions options;
    options.mesh = mesh;
    options.layout = layout;
    options.functions = functions();
    options.threads_per_rank = 1;
    auto session = std::make_unique<Session>(graph, cluster, options);
    for (const auto& [dim, size] : sizes_) session->set_size(dim, size);
    for (const auto& [name, array] : feeds) session->feed(name, array);
    return session;
  }

  std::vector<std::vector<double>> run(Cluster& cluster, const Mesh& mesh,
                                       const Layout& layout) const {
    auto session = compile(cluster, mesh, layout);
    session->run("all");
    std::vector<std::vector<double>> values;
    for (const Tensor& t : outputs()) values.push_back(numbers(session->fetch(t.name())));
    return values;
  }

  Graph graph;
  std::vector<Tensor> operands, results, wrt, gradients;
  Tensor loss;
  std::map<std::string, Array> feeds;

 private:
  void draw(Tensor tensor, const OpInput& in) {
    Array array(tensor.dtype(), in.shape.names(), {});
    for (const Dim& d : in.shape) {
      const auto given = test_.sizes.find(d.name);
      const bool is_short = d.is_bounded && given != test_.sizes.end();
      array.sizes.push_back(is_short ? given->second : d.size);
      if (d.is_bounded) sizes_[d.name] = array.sizes.back();
    }
    array.bytes.resize(static_cast<size_t>(array.elements() * size_of(array.dtype)));
    for (int64_t i = 0; i < array.elements(); ++i) {
      const double u = static_cast<double>(random_() >> 11) * 0x1p-53;
      const double span = in.hi - in.lo;
      set_number(array, i,
                 in.whole_numbers ? in.lo + std::floor(u * (span + 1)) : in.lo + u * span);
    }
    feeds[tensor.name()] = std::move(array);
  }

  void add_loss() {
    for (size_t i = 0; i < results.size(); ++i) {
      if (!is_floating(results[i].dtype())) continue;
      const OpInput in{fmt::format("weight{}", i), results[i].shape(), 0.5, 1.5};
      Tensor weight = graph.input(in.name, in.shape, type_);
      draw(weight, in);
      Tensor wide = results[i].dtype() == type_ ? results[i] : cast(results[i], type_);
      Tensor part = sum_all(wide * weight);
      loss = loss.empty() ? part : loss + part;
    }
    if (!loss.empty()) gradients = tessera::gradients(loss, wrt);
  }

  const OpTest& test_;
  DType type_;
  std::mt19937_64 random_;
  std::map<std::string, int64_t> sizes_;
};

class Run {
 public:
  Run(const OpTest& test, const OpTestOptions& options) : test_(test), options_(options) {
    report_.name = test.name;
    TESSERA_REQUIRE(!test.in.empty() && test.build, "[{}] the test needs an operand and build()",
                    test.name);
    TESSERA_REQUIRE(
        !test.types.empty() && std::all_of(test.types.begin(), test.types.end(), is_floating),
        "[{}] the types of a test are floating: float32, float64, bfloat16, float16", test.name);
    for (DType type : test.types) wide_ = type == DType::float64 ? type : wide_;
    for (const std::string& mesh : options.meshes) meshes_.push_back(Mesh::parse(mesh));
  }

  OpReport run() {
    for (DType type : test_.types) guarded(to_string(type), 1, [&] { check_values(type); });
    guarded("gradients", 1, [&] { check_gradients(); });
    guarded("layouts", 1, [&] { check_layouts(); });
    return std::move(report_);
  }

 private:
  template <class Work>
  void guarded(const std::string& what, int ranks, Work work) {
    try {
      work();
    } catch (const Error& e) {
      report_.failures.push_back(
          fmt::format("{}: {}: {} error: {}", test_.name, what, to_string(e.kind()), e.what()));
      clusters_.erase(ranks);
    } catch (const std::exception& e) {
      report_.failures.push_back(fmt::format("{}: {}: {}", test_.name, what, e.what()));
    }
  }

  void expect_near(const std::string& what, double error, double tolerance) {
    if (error <= tolerance) return;
    report_.failures.push_back(fmt::format("{}: {} is off by {:.3g}; {:.3g} is allowed", test_.name,
                                           what, error, tolerance));
  }

  Cluster& ranks(int n) {
    auto it = clusters_.find(n);
    if (it == clusters_.end()) {
      it = clusters_.emplace(n, Cluster::threads(n)).first;
      it->second.set_timeout(20);
    }
    return it->second;
  }

  double tolerance(DType type) const {
    return type == DType::float64   ? test_.tolerance64
           : type == DType::float32 ? test_.tolerance32
                                    : 2e-2;
  }

  void check_values(DType type) {
    const Built built(test_, type, options_.seed);
    const auto values = built.run(ranks(1), Mesh::parse("one:1"), {});
    std::vector<std::vector<double>> expected = first_values_;
    if (test_.expect) {
      std::vector<std::vector<double>> in;
      for (const Tensor& t : built.operands) in.push_back(numbers(built.feeds.at(t.name())));
      expected = test_.expect(in);
      TESSERA_REQUIRE(expected.size() == built.results.size(),
                      "expect() gives {} values for {} results", expected.size(),
                      built.results.size());
    }
    if (first_values_.empty()) first_values_ = values, first_type_ = type;
    const double most =
        test_.expect ? tolerance(type) : std::max(tolerance(type), tolerance(first_type_));
    for (size_t i = 0; i < built.results.size() && i < expected.size(); ++i) {
      ++report_.values;
      expect_near(fmt::format("{} '{}'", to_string(type), built.results[i].name()),
                  relative_error(values[i], expected[i]), most);
    }
  }

  /// Central differences of the loss, by rerunning one compiled Program.
  void check_gradients() {
    const Built built(test_, wide_, options_.seed);
    if (built.loss.empty()) return;
    const bool is_wide = wide_ == DType::float64;
    const double h = is_wide ? 1e-5 : 1e-2, most = is_wide ? 1e-6 : 2e-2;
    auto session = built.compile(ranks(1), Mesh::parse("one:1"), {});
    session->run("all");
    std::vector<std::vector<double>> computed;
    for (const Tensor& t : built.gradients) computed.push_back(numbers(session->fetch(t.name())));
    for (size_t k = 0; k < built.wrt.size(); ++k) {
      const std::string& name = built.wrt[k].name();
      const Array at = built.feeds.at(name);
      auto loss_at = [&](int64_t i, double x) {
        Array moved = at;
        set_number(moved, i, x);
        session->feed(name, moved);
        session->run("loss");
        return session->fetch_scalar(built.loss.name());
      };
      std::vector<double> differences;
      for (int64_t i = 0; i < at.elements(); ++i)
        differences.push_back((loss_at(i, at.at(i) + h) - loss_at(i, at.at(i) - h)) / (2 * h));
      session->feed(name, at);
      ++report_.gradients;
      expect_near(fmt::format("the gradient by '{}'", name),
                  relative_error(computed[k], differences, 1e-3), most);
    }
  }

  void check_layouts() {
    const Built built(test_, wide_, options_.seed);
    const auto expected = built.run(ranks(1), Mesh::parse("one:1"), {});
    std::vector<std::pair<const Mesh*, Layout>> layouts;
    for (const Mesh& mesh : meshes_) {
      for (Layout& layout : legal_layouts(built.graph, mesh, built.functions()))
        layouts.emplace_back(&mesh, std::move(layout));
    }
    std::mt19937_64 random(options_.seed);
    for (size_t i = layouts.size(); i > 1; --i) std::swap(layouts[i - 1], layouts[random() % i]);
    if (layouts.size() > options_.most_layouts) layouts.resize(options_.most_layouts);
    for (const auto& [mesh, layout] : layouts) {
      const std::string at =
          fmt::format("mesh '{}' layout '{}'", mesh->to_string(), layout.to_string());
      guarded(at, mesh->size(), [&] { check_layout(built, expected, *mesh, layout, at); });
    }
  }

  void check_layout(const Built& built, const std::vector<std::vector<double>>& expected,
                    const Mesh& mesh, const Layout& layout, const std::string& at) {
    ++report_.layouts;
    const auto values = built.run(ranks(mesh.size()), mesh, layout);
    const std::vector<Tensor> outputs = built.outputs();
    for (size_t i = 0; i < outputs.size(); ++i) {
      const DType dtype = outputs[i].dtype();
      const bool is_loss =
          !built.loss.empty() && outputs[i].id() == built.loss.id();  // it may cancel
      const double most = dtype == DType::float64 ? 1e-10 : is_narrow(dtype) ? 2e-2 : 1e-5;
      expect_near(fmt::format("{}: '{}'", at, outputs[i].name()),
                  relative_error(values[i], expected[i], is_loss ? 1 : 1e-30), most);
    }
  }

  const OpTest& test_;
  const OpTestOptions& options_;
  OpReport report_;
  DType wide_ = test_.types.empty() ? DType::float32 : test_.types[0], first_type_ = wide_;
  std::vector<std::vector<double>> first_values_;
  std::vector<Mesh> meshes_;
  std::map<int, Cluster> clusters_;
};

}  // namespace

std::string OpReport::to_string() const {
  if (ok())
    return fmt::format("{}: {} values, {} gradients, {} layouts: ok", name, values, gradients,
                       layouts);
  return fmt::format("{}", fmt::join(failures, "\n"));
}

OpReport test_op(const OpTest& test, const OpTestOptions& options) {
  return Run(test, options).run();
}

}  // namespace tessera::testing
