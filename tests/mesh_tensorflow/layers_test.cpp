// Layers, attention and mixtures of experts against the values and gradients that Mesh TensorFlow
// computes from the same operands and parameters, under several layouts.
#include "mesh_tensorflow/layers.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "support/apart.h"
#include "support/catch.h"
#include "tessera/tessera.h"

namespace tessera::test {

namespace {

using Names = std::vector<std::string>;
constexpr int kRuns = 3;  // before the state is looked at

Names split_at(const std::string& text, char separator) {
  Names parts;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Shape shape_of(const Array& a) {
  std::vector<Dim> dims;
  for (size_t i = 0; i < a.dims.size(); ++i) dims.emplace_back(a.dims[i], a.sizes[i]);
  return Shape(dims);
}

/// A case with the loss sum(result * weight) and its gradients.
class Built {
 public:
  Built(const std::string& row, const MtfBuild& build) : row_(row), inputs_(graph_, row) {
    Tensor loss;
    for (const auto& [name, tensor] : build(inputs_).named) {
      out_.push_back(identity(tensor).named("result." + name));
      if (!values_.has(row + "/weight/" + name)) continue;
      const Array a = values_.at(row + "/weight/" + name);
      Tensor term = sum_all(tensor * graph_.input("weight." + name, shape_of(a), a.dtype));
      loss = loss.empty() ? term : loss + term;
    }
    const Names wanted = values_.names(row, "grad");
    std::vector<Tensor> wrt;
    for (const std::string& name : wanted) wrt.push_back(graph_.find(name));
    if (wrt.empty()) return;
    const std::vector<Tensor> grads = gradients(loss, wrt);
    for (size_t i = 0; i < wanted.size(); ++i)
      out_.push_back(identity(grads[i]).named("gradient." + wanted[i]));
  }

  void check(const std::string& mesh, const std::string& layout) {
    INFO(row_ << " on " << mesh << " with \"" << layout << "\"");
    const Mesh parsed = Mesh::parse(mesh);
    Cluster cluster = Cluster::threads(parsed.size());
    const bool trains = !values_.names(row_, "after").empty();
    Session session(graph_, cluster, {parsed, Layout::parse(layout), {{"run", out_, trains}}});
    feed(session);
    session.run("run");
    Names results;
    for (const Tensor& t : out_) results.push_back(t.name());
    for (const std::string& name : values_.names(row_, "out"))
      compare(session, results, "result." + name, "out/" + name);
    for (const std::string& name : values_.names(row_, "grad"))
      compare(session, results, "gradient." + name, "grad/" + name);
    for (int i = 1; i < kRuns && trains; ++i) session.run("run");
    for (const std::string& name : values_.names(row_, "after"))
      check_mtf(name, session.fetch(name), values_.at(row_ + "/after/" + name));
  }

 private:
  void feed(Session& session) const {
    Names stored;
    for (const char* kind : {"param", "state"}) {
      for (const std::string& name : values_.names(row_, kind)) {
        stored.push_back(name);
        const Array a = values_.at(row_ + "/" + kind + "/" + name);
        session.assign(name, with_dims(a, session.shape_of(name).dims));
      }
    }
    Names known = session.program().stored_names();
    std::sort(stored.begin(), stored.end());
    std::sort(known.begin(), known.end());
    CHECK(known == stored);
    for (const std::string& name : values_.names(row_, "in"))
      session.feed(name, values_.at(row_ + "/in/" + name));
    for (const std::string& name : values_.names(row_, "weight"))
      session.feed("weight." + name, values_.at(row_ + "/weight/" + name));
  }
  void compare(Session& session, const Names& results, const std::string& name,
               const std::string& recorded) const {
    REQUIRE(std::find(results.begin(), results.end(), name) != results.end());
    check_mtf(name, session.fetch(name), values_.at(row_ + "/" + recorded));
  }

  const MtfValues& values_ = MtfValues::all();
  std::string row_;
  Graph graph_;
  MtfInputs inputs_;
  std::vector<Tensor> out_;
};

}  // namespace

Tensor MtfInputs::operator()(const std::string& name) const {
  Tensor& made = tensors_[name];
  if (!made.empty()) return made;
  const Array a = MtfValues::all().at(row_ + "/in/" + name);
  return made = graph.input(name, shape_of(a), a.dtype);
}

bool MtfInputs::has(const std::string& name) const {
  return MtfValues::all().has(row_ + "/in/" + name);
}

const MtfValues& MtfValues::all() {
  static const MtfValues values;
  return values;
}

MtfValues::MtfValues() : file_(TESSERA_SOURCE_DIR "/tests/mesh_tensorflow/layers.safetensors") {}

bool MtfValues::has(const std::string& name) const { return file_.find(name) != nullptr; }

Array MtfValues::at(const std::string& name) const {
  Array a = file_.read(name);
  const auto& dims = file_.metadata();
  const Names parts = split_at(name, '/');  // names of parameters have none
  for (const char* kind : {parts[1].c_str(), "in", "param", "out", "state"}) {
    const auto found = dims.find(parts[0] + "/" + kind + "/" + parts[2]);
    if (found == dims.end()) continue;
    a.dims = split_at(found->second, ',');
    return a;
  }
  FAIL("no dims of " << name);
  return a;
}

Names MtfValues::names(const std::string& row, const std::string& kind) const {
  Names found;
  const std::string prefix = row + "/" + kind + "/";
  for (const TensorInfo& t : file_.tensors()) {
    if (t.name.compare(0, prefix.size(), prefix) == 0)
      found.push_back(t.name.substr(prefix.size()));
  }
  return found;
}

Names MtfValues::cases() const {
  std::set<std::string> found;
  for (const TensorInfo& t : file_.tensors()) found.insert(t.name.substr(0, t.name.find('/')));
  return {found.begin(), found.end()};
}

Array with_dims(const Array& x, const Names& dims) {
  Array y(x.dtype, dims, {});
  std::vector<int64_t> strides;
  REQUIRE(dims.size() == x.dims.size());
  for (const std::string& d : dims) {
    const auto at = std::find(x.dims.begin(), x.dims.end(), d);
    INFO("dim " << d);
    REQUIRE(at != x.dims.end());
    y.sizes.push_back(x.sizes[at - x.dims.begin()]);
    strides.push_back(std::accumulate(x.sizes.begin() + (at - x.dims.begin()) + 1, x.sizes.end(),
                                      int64_t{1}, std::multiplies<>()));
  }
  y.bytes.resize(x.bytes.size());
  const int64_t width = size_of(x.dtype);
  for (int64_t i = 0; i < y.elements(); ++i) {
    int64_t rest = i, from = 0;
    for (size_t d = dims.size(); d-- > 0; rest /= y.sizes[d])
      from += rest % y.sizes[d] * strides[d];
    std::copy_n(x.bytes.begin() + from * width, width, y.bytes.begin() + i * width);
  }
  return y;
}

void check_mtf(const std::string& what, const Array& got, const Array& recorded) {
  const Array want = with_dims(recorded, got.dims);
  INFO(what);
  REQUIRE(got.sizes == want.sizes);
  double largest = 0, worst = 0;
  int64_t where = 0;
  for (int64_t i = 0; i < want.elements(); ++i) {
    largest = std::max(largest, std::abs(want.at(i)));
    const double off = apart(got.at(i), want.at(i));
    if (off <= worst) continue;
    worst = off;
    where = i;
  }
  INFO("element " << where << " is " << got.at(where) << ", not " << want.at(where)
                  << "; the largest " << largest);
  CHECK(worst <= 3e-5 * largest + 1e-7);
}

TEST_CASE("layers compute what they compute in Mesh TensorFlow", "[mtf]") {
  MtfRows rows;
  add_mtf_layers(rows);
  add_mtf_convolutions(rows);
  add_mtf_attention(rows);
  add_mtf_experts(rows);
  add_mtf_variants(rows);
  Names known, recorded;
  for (const auto& [name, build] : rows) known.push_back(name);
  for (const std::string& name : MtfValues::all().cases()) {
    if (name.find('.') == std::string::npos) recorded.push_back(name);
  }
  CHECK(known == recorded);
  for (const auto& [name, build] : rows) {
    INFO(name);
    Built built(name, build);
    built.check("x:1", "");
    built.check("x:2;y:2", "batch?:x;ff?:y");
    built.check("x:3;y:2", "length?,height?:x;heads?:y");
    built.check("x:2;y:2", "experts?,width?:x;model?:y");
  }
}

}  // namespace tessera::test
