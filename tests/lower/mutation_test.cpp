// Every collective and every mask of a Program is needed: without any one of them the result is
// wrong. And the Program of one model is what it was (tests/golden).
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/fail.h"
#include "lower/lower.h"
#include "support/catch.h"
#include "support/program_run.h"
#include "tessera/nn.h"
#include "tessera/ops.h"
#include "tessera/optim.h"

namespace tessera::test {

namespace TESSERA_FILE {

constexpr DType kType = DType::float64;

struct Model {
  Graph graph;
  std::vector<Tensor> outputs;
  std::vector<Tensor> wrt;
  bool updates = false;
  std::string mesh, layout;
  Wholes values;
};

Whole drawn(const Shape& shape, double lo, double hi, bool whole_numbers = false) {
  std::vector<int64_t> sizes;
  for (const Dim& d : shape) sizes.push_back(d.size);
  Whole w(shape.names(), sizes);
  uint64_t state = 88172645463325252ull + static_cast<uint64_t>(w.elements());
  for (double& x : w.data) {
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    const double u = static_cast<double>(state >> 11) * 0x1p-53;
    x = whole_numbers ? std::floor(lo + u * (hi - lo + 1)) : lo + u * (hi - lo);
  }
  return w;
}

Tensor input(Model& m, const std::string& name, const Shape& shape, double lo, double hi) {
  m.values[name] = drawn(shape, lo, hi);
  m.wrt.push_back(m.graph.input(name, shape, kType));
  return m.wrt.back();
}
Tensor weight(Model& m, const std::string& name, const Shape& shape, double lo = -1,
              double hi = 1) {
  m.values[name] = drawn(shape, lo, hi);
  m.wrt.push_back(m.graph.parameter(name, shape, nn::zeros(), kType));
  return m.wrt.back();
}
Tensor indices(Model& m, const std::string& name, const Shape& shape, int64_t below) {
  m.values[name] = drawn(shape, 0, static_cast<double>(below - 1), true);
  return m.graph.input(name, shape, DType::int32);
}

void add_gradients(Model& m, Tensor y) {
  m.outputs.push_back(y);
  for (Tensor g : gradients(mean_all(square(y)), m.wrt)) m.outputs.push_back(g);
}

// Operands go through log, rsqrt or reciprocal first: the padding of the results is not even
// finite, so that a mask of one operand cannot stand in for that of another.

/// Data and model parallel training with uneven batch and hidden size, momentum split over the data
/// axis.
void mlp(Model& m) {
  const Dim batch("batch", 5), in("in", 3), hidden("hidden", 7), out("out", 4);
  Tensor x = rsqrt(input(m, "x", {batch, in}, 0.5, 1));
  Tensor w1 = reciprocal(weight(m, "w1", {in, hidden}, 0.5, 1)),
         b1 = reciprocal(weight(m, "b1", {hidden}, 0.5, 1));
  Tensor h = log(einsum({x, w1}, {batch, hidden}) + b1);
  Tensor logits =
      einsum({h, weight(m, "w2", {hidden, out})}, {batch, out}) + weight(m, "b2", {out});
  Tensor loss = mean_all(cross_entropy(logits, indices(m, "labels", {batch}, 4), "out"));
  minimize(loss, constant(m.graph, 0.1, kType), momentum(), {.clip = 0.1});
  m.outputs = {loss};
  m.updates = true;
  m.mesh = "data:2;model:2";
  m.layout = "batch:data;hidden:model;@state out:data;@state in:data";
}

/// A contraction over seven elements on four ranks.
void contraction(Model& m) {
  const Dim a("a", 5), n("n", 7), b("b", 3);
  Tensor x = log(input(m, "x", {a, n}, 1.5, 2)), y = reciprocal(input(m, "y", {n, b}, 0.5, 1));
  add_gradients(m, einsum({x, y}, {a, b}));
  m.outputs.push_back(reduce_prod(x, "n"));
  m.outputs.push_back(reduce_max(y, "n"));
  m.mesh = "p:4";
  m.layout = "n:p";
}

/// Softmax along a split dim, of logits so low that padding would win.
void softmax_split(Model& m) {
  const Dim a("a", 4), n("n", 7);
  Tensor x = input(m, "x", {a, n}, -1003, -1000);
  add_gradients(m, softmax(x, "n"));
  m.mesh = "p:2;q:2";
  m.layout = "n:p;a:q";
}

/// A table split by rows, and the scatter of its gradient; in one tensor the axis changes to
/// another dim.
void gather_split(Model& m) {
  const Dim a("a", 6), n("n", 7), b("b", 4), c("c", 3);
  Tensor rows = gather(exp(weight(m, "table", {n, b})), indices(m, "i", {a}, 7), "n");
  Tensor moved = exp(rows).named("moved");
  add_gradients(m, einsum({cos(moved), weight(m, "v", {b, c})}, {a, c}));
  m.mesh = "p:2";
  m.layout = "n:p;a:p;@/moved/ b:p;@/moved/ a:-";
}

/// Windows over two split dims of uneven sizes: a halo around every slice, wider than a slice along
/// one dim, and what the gradients need of them. A rotation by half a dim.
void windows_split(Model& m) {
  const Dim height("height", 7), width("width", 5), in("in", 2), out("out", 3);
  Tensor x = log(input(m, "x", {height, width, in}, 1.5, 2));
  Tensor f = weight(m, "f", {Dim("filter_height", 4), Dim("filter_width", 5), in, out}, 0.5, 1);
  Tensor y = conv(x, f, {{{"height", "", 2}, {"width"}}});
  add_gradients(m, max_pool(y, {{{"width", 3, 1}}, Padding::same}));
  m.outputs.push_back(shift(y, "width", 2, true));
  m.outputs.push_back(concat({x, exp(x)}, "height"));
  m.mesh = "p:2;q:3";
  m.layout = "height:p;width:q";
}

struct Site {
  std::string function;
  size_t step;
  int instruction;  ///< a mask, -1: the whole collective, kDisplaced: the intervals of an exchange
};
constexpr int kDisplaced = -2;

std::vector<Site> sites_of(const Program& program, const std::string& function) {
  std::vector<Site> sites;
  const Function& f = program.functions[program.function(function)];
  for (size_t s = 0; s < f.steps.size(); ++s) {
    if (f.steps[s].kind == StepKind::collective) sites.push_back({function, s, -1});
    if (f.steps[s].find<ReslicingSpec>() && !f.steps[s].as<ReslicingSpec>().intervals.empty())
      sites.push_back({function, s, kDisplaced});
    for (size_t i = 0; i < f.steps[s].pointwise.code.size(); ++i) {
      if (f.steps[s].pointwise.code[i].code == PointwiseOp::mask)
        sites.push_back({function, s, static_cast<int>(i)});
    }
  }
  return sites;
}

View flat(const View& view, int64_t elements) {
  View result = view;
  result.sizes = {elements};
  result.strides = {1};
  return result;
}

/// The Program without the collective (its operand stays where the result should be), without the
/// mask, or with intervals that begin one element late.
Program without(const Program& program, const Site& site) {
  Program mutant = program;
  Function& f = mutant.functions[mutant.function(site.function)];
  Step& step = f.steps[site.step];
  if (site.instruction >= 0) {
    Instr& instr = step.pointwise.code[static_cast<size_t>(site.instruction)];
    Instr copy;
    copy.code = PointwiseOp::copy;
    copy.dtype = instr.dtype;
    copy.a = instr.a;
    instr = copy;
    return mutant;
  }
  if (site.instruction == kDisplaced) {
    for (AffineExpr& begin : step.exprs) begin.constant += begin.divisor;
    return mutant;
  }
  const int64_t in = step.in[0].elements(), out = step.out[0].elements(), both = std::min(in, out);
  Step zeros, copy;
  zeros.kernel = KernelKind::fill;
  zeros.spec = FillSpec{0};
  zeros.out = {flat(step.out[0], out)};
  copy.kernel = KernelKind::copy;
  copy.in = {flat(step.in[0], both)};
  copy.out = {flat(step.out[0], both)};
  const int number = step.number;
  const bool in_place = step.in[0].buffer == step.out[0].buffer;
  f.steps.erase(f.steps.begin() + static_cast<std::ptrdiff_t>(site.step));
  const auto of_number = [&](const Step& other) { return other.number == number; };
  // The neighbours of one number stay neighbours.
  const auto first = std::find_if(f.steps.begin(), f.steps.end(), of_number);
  const auto wait = std::find_if(f.steps.begin(), f.steps.end(), [&](const Step& other) {
    return of_number(other) && other.kind == StepKind::wait;
  });
  const bool is_alone = first == wait;
  f.first_update -= 1;
  const auto place = first - f.steps.begin();
  auto behind = wait - f.steps.begin() + 1;
  if (is_alone) {
    f.steps.erase(wait);
    --behind;
    --f.first_update;
  }
  if (in_place) return mutant;
  f.steps.insert(f.steps.begin() + behind, copy);
  f.steps.insert(f.steps.begin() + (is_alone ? static_cast<std::ptrdiff_t>(site.step) : place),
                 zeros);
  f.first_update += 2;
  return mutant;
}

Wholes reference_of(Model& m) {
  Reference reference(m.graph);
  for (const auto& [name, value] : m.values) reference.set(m.graph.find(name), value);
  for (const Stored& s : m.graph.stored()) {
    const Value& v = m.graph.value(s.value);
    if (!m.values.count(v.name)) reference.set(Tensor(&m.graph, s.value), drawn(v.shape, 0, 0));
  }
  Wholes expected;
  for (const Tensor& t : m.outputs) expected[t.name()] = reference.value(t);
  for (const Update& u : m.graph.updates())
    expected[m.graph.value(u.stored).name] = reference.value(u.value);
  return expected;
}

double error_of(const Wholes& got, const Wholes& expected) {
  double error = 0;
  for (const auto& [name, value] : expected)
    error = std::max(error, relative_error(got.at(name), value, 1e-3));
  return error;
}

struct Mutations {
  int collectives = 0, masks = 0, intervals = 0;
  std::string survivors;
};

void mutate(const char* name, void (*build)(Model&), Mutations& total) {
  Model m;
  build(m);
  const Program program =
      lower_for_cpu(m.graph, m.mesh, m.layout, {{"step", m.outputs, m.updates}});
  const Wholes expected = reference_of(m);
  const int ranks = Mesh::parse(m.mesh).size();
  Cluster cluster = Cluster::threads(ranks);
  INFO(name);
  REQUIRE(error_of(run_program(program, cluster, "step", m.values), expected) < 1e-10);
  for (const Site& site : sites_of(program, "step")) {
    ++(site.instruction == kDisplaced ? total.intervals
       : site.instruction < 0         ? total.collectives
                                      : total.masks);
    const Step& step = program.functions[program.function("step")].steps[site.step];
    try {
      if (error_of(run_program(without(program, site), cluster, "step", m.values), expected) > 1e-7)
        continue;
      total.survivors += fmt::format("\n{} step {}: {}", name, site.step, to_string(program, step));
    } catch (const Error&) {  // noticed: an index that makes no sense
      cluster = Cluster::threads(ranks);
    }
  }
}

TEST_CASE("every collective and every mask is needed", "[mutation][fast]") {
  Mutations total;
  mutate("mlp", mlp, total);
  mutate("contraction", contraction, total);
  mutate("softmax_split", softmax_split, total);
  mutate("gather_split", gather_split, total);
  mutate("windows_split", windows_split, total);
  WARN(fmt::format("{} collectives and {} masks removed, {} exchanges displaced", total.collectives,
                   total.masks, total.intervals));
  CHECK(total.survivors == "");
  CHECK(total.collectives > 10);
  CHECK(total.masks > 4);
  CHECK(total.intervals > 4);
}

void check_golden(const Graph& g, const std::string& mesh, const std::string& layout,
                  const FunctionSpec& function, const std::string& file) {
  const LowerOptions lowering{Mesh::parse(mesh),
                              Layout::parse(layout),
                              {function},
                              {},
                              {},
                              {}};  // no kernel's wishes: text for every build
  const std::string text = to_string(lower(g, lowering));
  const std::string path = std::string(TESSERA_SOURCE_DIR) + "/tests/golden/" + file;
  if (std::getenv("TESSERA_UPDATE_GOLDEN")) std::ofstream(path) << text;
  std::ifstream recorded_file(path);
  std::stringstream recorded;
  recorded << recorded_file.rdbuf();
  INFO("TESSERA_UPDATE_GOLDEN=1 records the new Program");
  CHECK(text == recorded.str());
}

TEST_CASE("the Program of an MLP on 2 x 2 ranks is the recorded one", "[golden][fast]") {
  Graph g;
  nn::MlpOptions options;
  options.batch = 6;
  options.rows = options.cols = 3;
  options.hidden = 5;
  options.classes = 4;
  const nn::Model model = nn::mlp(g, options);
  minimize(model.loss, constant(g, 0.1), sgd());
  check_golden(g, "data:2;model:2", "batch:data;hidden:model", {"train", {model.loss}, true},
               "mlp_2x2.txt");
}

TEST_CASE("the Program of a convolution split in space is the recorded one", "[golden][fast]") {
  Graph g;
  const Dim height("height", 7), width("width", 8), in("in", 2), out("out", 3);
  const Dim fh("filter_height", 5), fw("filter_width", 3);
  Tensor x = g.input("x", {height, width, in}, DType::float32);
  Tensor f = g.parameter("f", {fh, fw, in, out}, nn::normal(0.1));
  Tensor y = conv(x, f, {{{"height", "", 2}, {"width"}}});
  Tensor loss = mean_all(square(shift(y, "width", 4))).named("loss");
  minimize(loss, constant(g, 0.1), sgd());
  check_golden(g, "rows:2;cols:2", "height:rows;width:cols", {"train", {loss}, true},
               "conv_2x2.txt");
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
