// Random sums of 16-bit numbers whose results are small and exact while parts of them exceed the
// range of float16: no layout changes a bit, and all are the reference's.
#include <cmath>
#include <cstdlib>

#include "base/fail.h"
#include "ops/op_cases_run.h"
#include "ops/sum_to.h"
#include "support/catch.h"
#include "support/random_graphs.h"
#include "tessera/nn.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Random = std::mt19937_64;

struct Sums {
  Graph g;
  DType dtype = DType::float16;
  std::vector<Tensor> exact, close;  ///< outputs; close: to rounding
  std::map<std::string, Tensor> inputs;
  std::map<std::string, Whole> feeds;
  std::map<std::string, int64_t> sizes;  ///< of bounded dims
};

size_t draw(Random& random, size_t below) { return static_cast<size_t>(random() % below); }

/// Numbers that cancel along p: halves of opposite sign, then a small one.
class Builder {
 public:
  Builder(Sums& sums, Random& random) : s_(sums), random_(random) {
    s_.dtype = draw(random, 3) == 0 ? DType::bfloat16 : DType::float16;
    const auto size = [&](size_t most) { return 1 + static_cast<int64_t>(draw(random, most)); };
    run_ = 3 + static_cast<int64_t>(draw(random, 9));
    p_ = draw(random, 2) ? Dim::bounded("p", run_ + static_cast<int64_t>(draw(random, 4)))
                         : Dim("p", run_);
    if (p_.is_bounded) s_.sizes["p"] = run_;
    q_ = Dim("q", size(4));
    r_ = Dim("r", size(4));
    o_ = Dim("o", size(3));
  }

  void build() {
    std::vector<Dim> dims = {p_, q_, r_};
    std::shuffle(dims.begin(), dims.end(), random_);
    if (draw(random_, 3) == 0) dims.pop_back();
    if (std::find(dims.begin(), dims.end(), p_) == dims.end()) dims.push_back(p_);
    Tensor x = input("x", Shape(dims), true);
    for (size_t n = 1 + draw(random_, 3); n > 0; --n) add_output(x, static_cast<int>(n));
    for (size_t i = 0; i < s_.exact.size(); ++i)
      s_.exact[i] = s_.exact[i].uniquely_named("exact" + std::to_string(i));
    for (size_t i = 0; i < s_.close.size(); ++i)
      s_.close[i] = s_.close[i].uniquely_named("close" + std::to_string(i));
  }

 private:
  Tensor input(const std::string& name, const Shape& shape, bool cancels) {
    Tensor t = s_.g.input(name, shape, s_.dtype);
    std::vector<int64_t> sizes;
    for (const Dim& d : shape) sizes.push_back(d.name == "p" ? run_ : d.size);
    Whole whole(shape.names(), sizes);
    // bfloat16 has the range of float32 and few digits: parts of its sums are rounded.
    cancels &= s_.dtype == DType::float16;
    const double large = 256.0 * static_cast<double>(100 + draw(random_, 150));
    const int along = whole.find("p");
    size_t i = 0;
    each_index(whole.sizes, [&](const std::vector<int64_t>& index) {
      const int64_t at = along < 0 ? 0 : index[static_cast<size_t>(along)], half = (run_ - 1) / 2;
      double& v = whole.data[i++];
      v = static_cast<double>(draw(random_, 5)) - 2;
      if (cancels && at < half) v = large;
      if (cancels && at >= half && at < 2 * half) v = -large;
    });
    s_.feeds[name] = whole;
    s_.inputs[name] = t;
    return t;
  }

  /// Some of the dims of x but p, and p if `with_p`.
  std::vector<Dim> some(const Shape& shape, bool with_p) {
    std::vector<Dim> dims;
    for (const Dim& d : shape) {
      if (d.name == "p" ? with_p : draw(random_, 2) == 0) dims.push_back(d);
    }
    return dims;
  }

  Tensor weights(int n, std::vector<Dim> dims) {
    if (draw(random_, 2)) dims.push_back(o_);
    return input("w" + std::to_string(n), Shape(dims), false);
  }

  void add_output(Tensor x, int n) {
    const Shape axes(some(x.shape(), true));
    if (draw(random_, 3) == 0) x = -x;
    if (draw(random_, 4) == 0) x = rename(rename(x, "p", "s"), "s", "p");
    switch (draw(random_, 8)) {
      case 0:
        return s_.exact.push_back(reduce_sum(x, axes.names()));
      case 1:
      case 2: {
        Tensor w = weights(n, some(x.shape(), false));
        const Shape out(some(x.shape().united(w.shape()), false));
        Tensor y = sum_of_products({x, w}, out);
        s_.exact.push_back(y);
        return s_.exact.push_back(gradients(sum_all(y), {w})[0]);
      }
      case 3:
        return s_.exact.push_back(reduce_max(x, axes.names()));
      case 4: {  // p against ones
        Tensor one = constant(s_.g, 1, s_.dtype, {p_, o_});
        return s_.exact.push_back(einsum({x, one}, x.shape().without({"p"}).united({o_})));
      }
      case 5: {  // rows by pairs that cancel
        Tensor i = iota(s_.g, p_),
               half = constant(s_.g, static_cast<double>((run_ - 1) / 2), DType::int32);
        Tensor row = mod(where(i < half, i, i - half), constant(s_.g, 2, DType::int32));
        std::vector<Dim> dims = x.shape().without({"p"}).dims();
        dims.emplace_back("row", 2);
        return s_.exact.push_back(scatter_add(row, x, Shape(dims), "row"));
      }
      case 6:
        return s_.close.push_back(softmax(x, axes.names()));
      default:
        return s_.close.push_back(reduce_logsumexp(x, axes.names()));
    }
  }

  Sums& s_;
  Random& random_;
  Dim p_{"p", 1}, q_{"q", 1}, r_{"r", 1}, o_{"o", 1};
  int64_t run_ = 1;
};

using Values = std::map<std::string, Whole>;

Values run(const Sums& s, Cluster& cluster, const std::string& mesh, const std::string& layout) {
  std::vector<Tensor> outputs = s.exact;
  outputs.insert(outputs.end(), s.close.begin(), s.close.end());
  Session session(s.g, cluster, {Mesh::parse(mesh), Layout::parse(layout), {{"f", outputs}}});
  for (const auto& [dim, size] : s.sizes) session.set_size(dim, size);
  for (const auto& [name, value] : s.feeds) {
    try {
      session.feed(name, array_of(value, s.dtype));
    } catch (const Error& e) {  // no function needs it
      if (std::string(e.what()).find("has no input") == std::string::npos) throw;
    }
  }
  session.run("f");
  Values values;
  for (const Tensor& t : outputs) values[t.name()] = whole_of(session.fetch(t.name()));
  return values;
}

/// "" or what differs.
std::string compare(const Sums& s, const Values& one, const Values& split) {
  for (const Tensor& t : s.exact) {
    if (split.at(t.name()).data != one.at(t.name()).data)
      return fmt::format("'{}' is not the same to the bit", t.name());
  }
  for (const Tensor& t : s.close) {
    const double error = relative_error(split.at(t.name()), one.at(t.name()));
    if (!(error <= (s.dtype == DType::float16 ? 0x1p-10 : 0x1p-7)))
      return fmt::format("'{}' is off by {:.3g}", t.name(), error);
  }
  return "";
}

std::string against_reference(const Sums& s, const Values& one) {
  Reference reference(s.g, s.sizes);
  for (const auto& [name, value] : s.feeds) reference.set(s.inputs.at(name), value);
  for (const auto* list : {&s.exact, &s.close}) {
    for (const Tensor& t : *list) {
      const double error = relative_error(one.at(t.name()), reference.value(t));
      if (!(error <= (s.dtype == DType::float16 ? 0x1p-10 : 0x1p-7)))
        return fmt::format("'{}' is off the reference by {:.3g}", t.name(), error);
    }
  }
  return "";
}

std::string try_one(uint64_t seed, Clusters& clusters, int& refused) {
  Random random(seed);
  Sums sums;
  Builder(sums, random).build();
  const Values one = run(sums, clusters.of(1), "x:1", "");
  std::string where = "on one rank", wrong = against_reference(sums, one);
  for (int tries = 0; tries < 3 && wrong.empty(); ++tries) {
    const std::string mesh = draw_mesh(random), layout = draw_layout(sums.g, mesh, random);
    const int ranks = Mesh::parse(mesh).size();
    where = fmt::format("mesh '{}' layout '{}'", mesh, layout);
    try {
      wrong = compare(sums, one, run(sums, clusters.of(ranks), mesh, layout));
    } catch (const Error& e) {
      if (e.kind() == ErrorKind::usage &&
          std::string(e.what()).find("both claim mesh axis") != std::string::npos) {
        ++refused;
        continue;
      }
      wrong = fmt::format("{} error: {}", to_string(e.kind()), e.what());
      clusters.drop(ranks);
    }
  }
  return wrong.empty() ? "" : fmt::format("{}: {}\n{}", where, wrong, sums.g.to_string());
}

TEST_CASE("attention and running sums in float16 keep what exceeds its range in float32") {
  const Dim a("a", 6), b("b", 5);
  const auto values = [&](const char* mesh, const char* layout) {
    Graph g;
    Tensor x = g.input("x", {a, b}, DType::float16);
    const Tensor q = rename(rename(x, "a", "length"), "b", "d_head") * 0.01;
    const Tensor k = rename(q, "length", "memory_length");  // logits of 200,000
    const Tensor sums = cumsum(x, "a", false, true).named("sums");
    const Tensor seen = attention(q, k, k * 100.0).named("seen");
    const Tensor loss = sum_all(cast(attention(q, k, k * 0.01), DType::float32));
    const Tensor gradient = gradients(loss, {x})[0].named("gradient");
    Cluster ranks = Cluster::threads(Mesh::parse(mesh).size());
    Session session(g, ranks,
                    {Mesh::parse(mesh), Layout::parse(layout), {{"f", {sums, seen, gradient}}}});
    Whole large({"a", "b"}, {6, 5});
    for (size_t i = 0; i < 30; ++i) large.data[i] = i < 15 ? 30016 : -30016;
    session.feed("x", array_of(large, DType::float16));
    session.run("f");
    std::vector<Whole> all;
    for (const char* name : {"sums", "seen", "gradient"})
      all.push_back(whole_of(session.fetch(name)));
    return all;
  };
  const auto one = values("m:1", "");
  CHECK(one[0].data[0] == 0);  // of -30016, -60032, -90048 (infinite), -60032, -30016, 0
  for (const auto& [mesh, layout] : std::vector<std::pair<const char*, const char*>>{
           {"m:2", "a:m"}, {"m:4", "a:m"}, {"m:2", "length,memory_length:m"}, {"m:3", "b:m"}}) {
    INFO(mesh << " " << layout);
    const auto split = values(mesh, layout);
    CHECK(split[0].data == one[0].data);
    CHECK(relative_error(split[1], one[1]) < 0.01);  // exp() of a difference of such numbers
    for (const double x : split[2].data) CHECK(std::isfinite(x));
  }
}

TEST_CASE("random sums in 16 bits overflow under no layout where the result does not",
          "[random_graphs]") {
  const uint64_t seed = seed_of_run(1);
  const char* wanted = std::getenv("TESSERA_SUMS");
  const int graphs = wanted ? std::atoi(wanted) : 150;
  Clusters clusters;
  int failures = 0, refused = 0;
  for (int n = 0; n < graphs && failures < 3; ++n) {
    const std::string wrong = try_one(seed * 1000003 + static_cast<uint64_t>(n), clusters, refused);
    failures += !wrong.empty();
    INFO("seed " << seed << " graph " << n);
    CHECK(wrong == "");
  }
  CHECK(refused < graphs);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
