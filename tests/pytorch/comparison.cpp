#include "pytorch/comparison.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "pytorch/import.h"
#include "support/catch.h"
#include "tessera/safetensors.h"
#include "tessera/session.h"

namespace tessera::test {

namespace {

double norm(const Array& a) {
  double sum = 0;
  for (int64_t i = 0; i < a.elements(); ++i)
    if (std::isfinite(a.at(i))) sum += a.at(i) * a.at(i);
  return std::sqrt(sum);
}

/// |a - b| / size.
double apart(const Array& a, const Array& b, double size) {
  if (a.elements() != b.elements()) return INFINITY;
  double difference = 0;
  for (int64_t i = 0; i < a.elements(); ++i)
    if (a.at(i) != b.at(i)) difference += (a.at(i) - b.at(i)) * (a.at(i) - b.at(i));
  return std::sqrt(difference) / std::max(size, 1e-20);
}

/// The names of a parameter in the state_dict: of one of all layers, those of each with its number.
std::vector<std::pair<int64_t, std::string>> layers_of(const Tensor& parameter) {
  const std::string& name = parameter.name();
  if (!parameter.shape().has("layers")) return {{-1, name}};
  std::vector<std::pair<int64_t, std::string>> all;
  int64_t first = 0, shift = 1;
  const size_t from = name.find(".from");
  std::string plain = name;
  if (from != std::string::npos) {
    CHECK(std::sscanf(name.c_str() + from, ".from%" SCNd64 "by%" SCNd64, &first, &shift) > 0);
    plain.erase(from, name.find('.', from + 1) - from);
  }
  for (size_t dot = plain.find('.'); dot != std::string::npos; dot = plain.find('.', dot + 1))
    for (int64_t layer = 0; layer < parameter.dim("layers").size; ++layer)
      if (from == std::string::npos || dot == from)
        all.emplace_back(layer, fmt::format("{}.{}{}", plain.substr(0, dot), first + shift * layer,
                                            plain.substr(dot)));
  return all;
}

/// What PyTorch computed, also for parts of parameters.
class Expected {
 public:
  Expected(const std::string& path, const std::string& program) : file_(path) {
    for (const auto& [whole, parts] : pytorch::read_program(pytorch::Archive(program)).parts)
      for (const pytorch::Part& part : parts) parts_[part.name] = {whole, part.place};
  }

  bool has_gradient(const std::string& name) const {
    return file_.find("grad." + whole_of(name)) != nullptr;
  }
  /// The norm of the gradient, of a part that of the whole.
  double size(const std::string& name) const { return norm(file_.read("grad." + whole_of(name))); }

  Array gradient(const std::string& name) const {
    const auto part = parts_.find(name);
    if (part == parts_.end()) return file_.read("grad." + name);
    const auto& [whole, place] = part->second;
    const Array all = file_.read("grad." + whole);
    Array some(all.dtype, {"elements"}, {pytorch::elements_of(place)});
    pytorch::gather(all, place, some);
    return some;
  }

 private:
  const std::string& whole_of(const std::string& name) const {
    const auto part = parts_.find(name);
    return part == parts_.end() ? name : part->second.first;
  }

  SafetensorsReader file_;
  std::map<std::string, std::pair<std::string, pytorch::TensorMeta>> parts_;
};

}  // namespace

Difference compare_with_pytorch(const PytorchModel& model, const std::string& expected_path,
                                const std::string& mesh, const std::string& layout, bool scan,
                                DType dtype) {
  const SafetensorsReader expected(expected_path);
  const Expected theirs(expected_path, model.path());
  Graph graph;
  const PytorchModel::Built built = model.build(graph, {.dtype = dtype, .scan = scan});
  CompileOptions options;
  options.mesh = Mesh::parse(mesh);
  options.layout = Layout::parse(layout);
  FunctionSpec function{"compare", {}, false};
  std::vector<std::pair<std::string, Array>> fed;
  Tensor total;
  std::vector<std::pair<std::string, std::string>> outputs, gradients_of;
  for (size_t i = 0; i < model.outputs().size(); ++i) {
    const auto found = built.outputs.find(model.outputs()[i]);
    if (found == built.outputs.end()) continue;
    const Tensor out = identity(found->second).uniquely_named("compared_output");
    function.outputs.push_back(out);
    outputs.emplace_back(out.name(), fmt::format("out.{}", i));
    const std::string cotangent = fmt::format("cotangent.{}", i);
    if (!expected.find(cotangent)) continue;
    Array values = expected.read(cotangent);
    if (dtype == DType::float64) values = pytorch::converted(values, dtype);
    values.dims = out.shape().names();
    values.sizes.clear();
    for (const Dim& d : out.shape()) values.sizes.push_back(d.size);
    const Tensor weighted =
        cast(sum_all(out * graph.input(cotangent, out.shape(), out.dtype())), dtype);
    total = total.empty() ? weighted : total + weighted;
    fed.emplace_back(cotangent, std::move(values));
  }
  const std::vector<Tensor> parameters = graph.parameters();
  if (!total.empty() && !parameters.empty()) {
    const std::vector<Tensor> all = gradients(total, parameters);
    for (size_t i = 0; i < all.size(); ++i) {
      for (const auto& [layer, name] : layers_of(parameters[i])) {
        if (!theirs.has_gradient(name)) continue;
        const Tensor part = layer < 0 ? identity(all[i])
                                      : reshape(slice(all[i], "layers", layer, 1),
                                                all[i].shape().without({"layers"}));
        function.outputs.push_back(part.uniquely_named("compared_gradient"));
        gradients_of.emplace_back(function.outputs.back().name(), name);
      }
    }
  }
  options.functions = {function};
  Cluster cluster = Cluster::threads(static_cast<int>(options.mesh.size()));
  Session session(graph, cluster, options);
  model.load(session);
  for (const PytorchModel::Input& input : model.inputs()) {
    Array values = expected.read("in." + input.name);
    const Shape shape = graph.find(input.name).shape();
    values.dims = shape.names();
    values.sizes.clear();
    for (const Dim& d : shape) values.sizes.push_back(d.size);
    session.feed(input.name, values);
  }
  for (auto& [name, values] : fed) session.feed(name, values);
  session.run("compare");
  Difference result;
  // A gradient that is zero but for rounding, as of a key's bias, is compared on the scale of all.
  double all = 0;
  for (const auto& [ours, name] : gradients_of) all = std::max(all, theirs.size(name));
  double worst = -1;
  const auto compare = [&](const std::string& ours, const std::string& name, const Array& right,
                           double least, double& largest) {
    const double d = apart(session.fetch(ours), right, std::max(least, norm(right)));
    largest = std::isnan(d) ? INFINITY : std::max(largest, d);
    if (d > worst) worst = d, result.worst = name;
  };
  for (const auto& [ours, name] : outputs)
    compare(ours, name, expected.read(name), 0, result.output), ++result.outputs;
  for (const auto& [ours, name] : gradients_of)
    compare(ours, "grad." + name, theirs.gradient(name), std::max(theirs.size(name), 1e-3 * all),
            result.gradient),
        ++result.gradients;
  return result;
}

std::string confused_dims(const std::string& program_path, const std::string& expected_path,
                          const std::map<std::string, PytorchOp>& ops) {
  using Part = std::array<int64_t, 3>;  // of a dim: its identity, elements behind it and its size
  const SafetensorsReader expected(expected_path);
  const pytorch::Archive archive(program_path);
  const pytorch::ExportedProgram program = pytorch::read_program(archive);
  pytorch::Import import(archive, program, ops);
  std::map<int, std::pair<std::vector<Part>, std::string>> meaning;
  for (const pytorch::InputSpec& input : program.inputs) {
    const std::string whole = input.part_of.empty() ? input.name : input.part_of;
    if (!expected.find("dims." + whole)) continue;
    const Array dims = expected.read("dims." + whole);
    const pytorch::Value value = import.value(input.value);
    if (dims.sizes[0] != std::ssize(value.axes)) continue;  // a part of blocks
    const int64_t columns = dims.elements() / std::ssize(value.axes);
    for (size_t a = 0; a < value.axes.size(); ++a) {
      int64_t behind = 1;
      for (size_t i = value.axes[a].size(); i-- > 0;) {
        const int atom = value.axes[a][i].atom;
        const int64_t size = import.atoms().size(atom);
        std::vector<Part> parts;  // where [behind, behind * size) lies among the dims of the axis
        int64_t inner = 1;
        for (int64_t k = columns - 2; k >= 0; k -= 2) {
          const auto row = static_cast<int64_t>(a) * columns + k;
          const auto dim = static_cast<int64_t>(dims.at(row)),
                     n = static_cast<int64_t>(dims.at(row + 1));
          const int64_t low = std::max(inner, behind), high = std::min(inner * n, behind * size);
          if (low < high) parts.push_back({dim, low / inner, high / low});
          inner *= n;
        }
        behind *= size;
        const std::string place = fmt::format("axis {} of {}", a, input.name);
        const auto [known, is_new] = meaning.try_emplace(atom, parts, place);
        if (known->second.first != parts)
          return fmt::format("{} elements of {} and of {} are one", size, place,
                             known->second.second);
      }
    }
  }
  return "";
}

std::vector<MeshAndLayout> random_layouts(const PytorchModel& model, uint64_t seed) {
  std::vector<std::string> names;
  for (const PytorchModel::FoundDim& d : model.dims())
    if (d.size > 1) names.push_back(d.name);
  std::mt19937_64 random(seed);
  std::shuffle(names.begin(), names.end(), random);
  std::vector<MeshAndLayout> all = {{"a:1", ""}};
  const auto name = [&](size_t i) { return names[i % names.size()]; };
  if (names.empty()) return all;
  all.push_back({"a:3", name(0) + ":a"});
  if (names.size() < 2) return all;
  all.push_back({"a:2;b:2", fmt::format("{}:a;{}:b", name(1), name(2))});
  all.push_back({"a:2;b:2", fmt::format("{}:a+b", name(3))});
  return all;
}

std::vector<MeshAndLayout> layouts_of(const PytorchModel& model) {
  std::vector<MeshAndLayout> all = {{"a:1", ""}};
  std::set<std::string> names;
  for (const PytorchModel::FoundDim& d : model.dims()) names.insert(d.name);
  std::string parallel;
  for (const char* name : {"heads", "ff", "vocab"})
    if (names.count(name) != 0) parallel += (parallel.empty() ? "" : ",") + std::string(name);
  std::set<std::string> taken;  // parameters; where there is no attention, channels are split
  for (const PytorchModel::FoundDim& d : model.dims()) {
    const auto is_taken = [&](const std::string& p) { return taken.count(p) != 0; };
    if (names.count("ff") != 0 || !d.name.starts_with("channels_") ||
        std::any_of(d.parameters.begin(), d.parameters.end(), is_taken))
      continue;
    taken.insert(d.parameters.begin(), d.parameters.end());
    parallel += (parallel.empty() ? "" : ",") + d.name;
  }
  const bool has_batch = names.count("batch") != 0;
  if (!parallel.empty() && has_batch)
    all.push_back({"data:2;model:2", "batch:data;" + parallel + ":model"});
  if (!parallel.empty()) all.push_back({"model:3", parallel + ":model"});  // uneven
  for (const std::string& name : names) all.push_back({"a:2", name + ":a"});
  return all;
}

}  // namespace tessera::test
