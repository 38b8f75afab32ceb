#include "tessera/pytorch_model.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <optional>
#include <set>

#include "base/fail.h"
#include "base/files.h"
#include "base/hash.h"
#include "base/json.h"
#include "pytorch/import.h"
#include "pytorch/loss.h"
#include "pytorch/names.h"
#include "pytorch/plain_ops.h"
#include "pytorch/reading.h"
#include "tessera/checkpoint.h"
#include "tessera/safetensors.h"

namespace tessera {

using namespace pytorch;  // its parts

struct PytorchModel::State {
  State(const std::string& path, const PytorchOptions& given)
      : options(given),
        archive(path),
        program(read_program(archive)),
        labels(add_loss(program, given.loss)) {}

  PytorchOptions options;
  Archive archive;
  ExportedProgram program;
  std::string labels, hash;
  std::vector<FoundDim> dims;
  std::vector<Input> inputs;
  std::vector<std::string> plain_ops;
  int64_t batch = 0;
  bool dynamic = false;
};

PytorchModel::PytorchModel(const std::string& path, const PytorchOptions& options)
    : state_(std::make_unique<State>(path, options)) {
  State& s = *state_;
  s.hash = fmt::format("{:016x}", hash_of(s.archive.read("models/model.json")));
  Import import(s.archive, s.program, s.options.ops);
  name_dims(import, options.dims);
  s.plain_ops = find_plain_ops(import);
  std::map<std::string, size_t> at;
  for (const InputSpec& input : s.program.inputs) {
    const pytorch::Value& value = import.values().at(input.value);
    if (value.is_constant || value.is_complex) continue;
    std::vector<Dim> dims;
    const AxisList& axes = import.values().at(input.value).axes;
    for (size_t a = 0; a < axes.size(); ++a) {
      for (const Use& use : import.atoms().expand(axes[a])) {
        const Dim d = import.dim({use.atom, 0});
        dims.push_back(d);
        if (at.emplace(d.name, s.dims.size()).second) s.dims.push_back({d.name, d.size, {}, {}});
        FoundDim& found = s.dims[at[d.name]];
        auto& where = input.kind == InputSpec::Kind::user ? found.inputs : found.parameters;
        if (where.empty() || where.back() != input.name) where.push_back(input.name);
        if (d.name != "batch" || input.kind != InputSpec::Kind::user) continue;
        s.batch = d.size;
        s.dynamic = !s.program.graph.tensors.at(input.value).symbols[a].empty();
      }
    }
    if (input.kind != InputSpec::Kind::user) continue;
    s.inputs.push_back({input.name, dims, dtype_of(s.program.graph.tensors.at(input.value).type)});
  }
}

PytorchModel::~PytorchModel() = default;
PytorchModel::PytorchModel(PytorchModel&&) noexcept = default;

const std::string& PytorchModel::path() const { return state_->program.path; }
const std::string& PytorchModel::hash() const { return state_->hash; }
const std::vector<PytorchModel::FoundDim>& PytorchModel::dims() const { return state_->dims; }
const std::vector<PytorchModel::Input>& PytorchModel::inputs() const { return state_->inputs; }
const std::vector<std::string>& PytorchModel::outputs() const {
  return state_->program.output_names;
}
const std::vector<std::string>& PytorchModel::plain_ops() const { return state_->plain_ops; }
std::string PytorchModel::layer_scope() const {
  for (const InputSpec& input : state_->program.state)
    for (size_t dot = input.name.find('.'); dot != std::string::npos;
         dot = input.name.find('.', dot + 1)) {
      const std::string front = input.name.substr(0, dot), second = front + ".1.";
      const bool repeats =
          std::any_of(state_->program.state.begin(), state_->program.state.end(),
                      [&](const InputSpec& other) { return other.name.starts_with(second); });
      if (repeats) return front.substr(front.rfind('.') + 1);
    }
  return "";
}

const std::string& PytorchModel::labels() const { return state_->labels; }
bool PytorchModel::has_loss() const { return !state_->program.loss.empty(); }
int64_t PytorchModel::exported_batch() const { return state_->batch; }
bool PytorchModel::has_dynamic_batch() const { return state_->dynamic; }

namespace {

/// The values that modules return, by path, in the order of their nodes.
std::vector<std::pair<std::string, std::string>> results_of_modules(
    const ExportedProgram& program) {
  const auto is_in = [](const pytorch::Node& node, const std::string& path) {
    return std::any_of(node.modules.begin(), node.modules.end(),
                       [&](const auto& m) { return m.first == path; });
  };
  std::map<std::string, const pytorch::Node*> maker;
  for (const pytorch::Node& node : program.graph.nodes)
    for (const std::string& output : node.outputs) maker[output] = &node;
  std::map<std::string, std::set<std::string>> leaving;  // values that a module's outside reads
  const auto read = [&](const std::string& value, const pytorch::Node* by) {
    const auto made = maker.find(value);
    if (made == maker.end() || made->second->outputs.size() != 1) return;
    for (const auto& [path, type] : made->second->modules)
      if (!by || !is_in(*by, path)) leaving[path].insert(value);
  };
  for (const pytorch::Node& node : program.graph.nodes)
    for (const std::string& operand : operands_of(node)) read(operand, &node);
  for (const std::string& output : program.outputs) read(output, nullptr);
  std::vector<std::pair<std::string, std::string>> results;
  for (const pytorch::Node& node : program.graph.nodes)
    for (const auto& [path, values] : leaving)
      if (values.size() == 1 && !node.outputs.empty() && *values.begin() == node.outputs[0] &&
          !path.empty() && path.find('@') == std::string::npos && leaving.count(path + "@1") == 0)
        results.emplace_back(path, node.outputs[0]);
  return results;
}

}  // namespace

PytorchModel::Built PytorchModel::build(Graph& graph, const PytorchBuild& options) const {
  const State& s = *state_;
  TESSERA_REQUIRE(
      options.batch == 0 || options.batch == s.batch || s.dynamic,
      "[pytorch] '{}' was exported for a batch of {}, not of {}; export it with a dynamic batch "
      "(dynamic_shapes), or take that size",
      s.program.path, s.batch, options.batch);
  Import import(s.archive, s.program, s.options.ops);
  name_dims(import, s.options.dims);
  if (options.batch != 0) {
    for (const InputSpec& input : s.program.inputs)
      for (const Axis& axis : import.values().at(input.value).axes)
        for (const Use& use : import.atoms().expand(axis))
          if (import.dim({use.atom, 0}).name == "batch")
            import.resize(use.atom, options.batch, options.partial);
  }
  import.build(graph, {options.dtype, options.evaluates, options.scan, options.inputs});
  Built built;
  built.model.inputs = import.fed();
  for (size_t i = 0; i < s.program.outputs.size(); ++i)
    if (!s.program.outputs[i].empty())
      built.outputs[s.program.output_names[i]] = import.whole(s.program.outputs[i]);
  for (const auto& [path, value] : results_of_modules(s.program))
    if (const auto found = import.values().find(value);
        !options.scan && found != import.values().end() && !found->second.is_constant)
      built.modules.emplace_back(path, import.whole(value));
  if (!s.program.loss.empty()) {
    built.model.loss = import.value(s.program.loss).tensor;
    if (built.model.loss.dtype() != DType::float32 && built.model.loss.dtype() != DType::float64)
      built.model.loss = cast(built.model.loss, DType::float32);
  }
  return built;
}

namespace {

bool has_elements(const ExportedProgram& program, bool of_parameters) {
  for (const InputSpec& input : program.inputs) {
    const bool is_parameter = input.kind == InputSpec::Kind::parameter;
    if (input.kind == InputSpec::Kind::user || is_parameter != of_parameters) continue;
    const auto stored = program.stored.find(input.name);
    if (stored == program.stored.end() || stored->second.entry.empty()) return false;
  }
  return true;
}

}  // namespace

bool PytorchModel::has_weights() const { return has_elements(state_->program, true); }
bool PytorchModel::has_constants() const { return has_elements(state_->program, false); }

namespace {

/// Where a parameter of layer i is stored: its name, or that of all layers of a loop and which one
/// of them it is.
struct StoredPlace {
  std::string name;
  int64_t layer = -1;
};

std::optional<StoredPlace> place_of(const std::string& name, const std::set<std::string>& stored) {
  if (stored.count(name) != 0) return StoredPlace{name, -1};
  for (size_t at = name.find('.'); at != std::string::npos; at = name.find('.', at + 1)) {
    const size_t dot = std::min(name.find('.', at + 1), name.size());
    const std::string part = name.substr(at + 1, dot - at - 1);
    if (part.empty() || part.size() > 6 ||
        part.find_first_not_of("0123456789") != std::string::npos)
      continue;
    const int64_t number = std::atoll(part.c_str());
    const std::string front = name.substr(0, at), rest = name.substr(dot);
    if (stored.count(front + rest) != 0) return StoredPlace{front + rest, number};
    // "blocks.from1by2.up" holds layers 1, 3, ... of "blocks".
    const std::string from = front + ".from";
    for (auto all = stored.lower_bound(from); all != stored.end() && all->starts_with(from);
         ++all) {
      int64_t first = 0, shift = 1;
      const size_t end = std::min(all->find('.', from.size()), all->size());
      const std::string which = all->substr(from.size(), end - from.size());
      const int found = std::sscanf(which.c_str(), "%" SCNd64 "by%" SCNd64, &first, &shift);
      if (found > 0 && all->substr(end) == rest && number >= first && shift > 0 &&
          (number - first) % shift == 0)
        return StoredPlace{*all, (number - first) / shift};
    }
    break;
  }
  return {};
}

/// Layer `layer` of a slice of all, if it has it.
std::optional<Slice> of_layer(const Slice& all, int64_t layer) {
  if (layer < 0) return all;
  if (layer < all.offset[0] || layer >= all.offset[0] + all.valid[0]) return {};
  Slice one = all;
  one.data =
      static_cast<char*>(all.data) + (layer - all.offset[0]) * all.strides[0] * size_of(all.dtype);
  for (auto* numbers : {&one.offset, &one.valid, &one.strides}) numbers->erase(numbers->begin());
  one.dims.erase(one.dims.begin());
  return one;
}

std::set<std::string> parameters_of(const std::string& checkpoint) {
  const std::map<std::string, std::string> metadata = read_checkpoint(checkpoint).metadata;
  const auto listed = metadata.find("parameters");
  const nlohmann::json names =
      listed == metadata.end() ? nlohmann::json() : parse_json(listed->second);
  std::set<std::string> all;
  for (const auto& name : names)
    if (name.is_string()) all.insert(name.get<std::string>());
  return all;
}

using ReadStored = std::function<Array(const std::string& name)>;

/// A tensor that `read` has, or that of one layer.
Array read_layer(const ReadStored& read, const std::string& name,
                 const std::set<std::string>& there) {
  const auto place = place_of(name, there);
  const Array all = read(place ? place->name : name);
  if (!place || place->layer < 0) return all;
  Array one(all.dtype, {all.dims.begin() + 1, all.dims.end()},
            {all.sizes.begin() + 1, all.sizes.end()});
  const auto bytes = std::ssize(one.bytes);
  std::copy_n(all.bytes.begin() + place->layer * bytes, bytes, one.bytes.begin());
  return one;
}

/// A tensor of the state_dict: its elements in row-major order, of its parts if it is stored so.
Array read_state(const ExportedProgram& program, const InputSpec& input, const ReadStored& read,
                 const std::set<std::string>& there) {
  std::string name = input.name;
  for (const InputSpec& other : program.state)
    if (other.value == input.tied_to) name = other.name;
  const auto parts = program.parts.find(name);
  if (parts == program.parts.end()) return read_layer(read, name, there);
  Array whole;
  for (const Part& part : parts->second) {
    const Array from = read_layer(read, part.name, there);
    if (whole.bytes.empty())
      whole = Array(from.dtype, {"elements"}, {elements_of(program.graph.tensors.at(input.value))});
    scatter(from, part.place, whole);
  }
  return whole;
}

}  // namespace

int64_t PytorchModel::export_weights(const std::string& checkpoint, const std::string& to) const {
  const State& s = *state_;
  TESSERA_REQUIRE(!is_taken(to), "[export] '{}' exists; give another name", to);
  std::vector<TensorInfo> infos;
  std::vector<std::pair<const InputSpec*, bool>> sources;  // whether it is in the checkpoint
  Import import(s.archive, s.program, s.options.ops);
  for (const InputSpec& input : s.program.state) {
    if (input.kind == InputSpec::Kind::user || input.kind == InputSpec::Kind::constant ||
        !input.is_exported)
      continue;
    const TensorMeta& meta = s.program.graph.tensors.at(input.value);
    TensorInfo info;
    info.name = input.name, info.dtype = exported_dtype(meta.type), info.sizes = meta.sizes;
    const auto value = import.values().find(input.value);
    sources.emplace_back(&input, value == import.values().end() || !value->second.is_constant);
    infos.push_back(std::move(info));
  }
  const std::set<std::string> there = parameters_of(checkpoint);
  const ReadStored read = [&](const std::string& name) { return read_tensor(checkpoint, name); };
  SafetensorsWriter writer(to, infos, {{"format", "pt"}});
  for (size_t i = 0; i < infos.size(); ++i) {
    const auto& [input, is_in_checkpoint] = sources[i];
    const Array array = converted(
        is_in_checkpoint ? read_state(s.program, *input, read, there)
                         : read_array(s.archive, input->name, s.program.stored.at(input->name)),
        infos[i].dtype);
    const int64_t elements = elements_of(s.program.graph.tensors.at(input->value));
    TESSERA_REQUIRE(
        array.elements() == elements,
        "[export] '{}' is not a checkpoint of '{}': its '{}' has {} elements instead of {}",
        checkpoint, s.program.path, input->name, array.elements(), elements);
    writer.write(infos[i].name, array.bytes.data(), std::ssize(array.bytes));
  }
  writer.finish();
  return std::ssize(infos);
}

std::optional<Array> PytorchModel::fetch(Session& session, const std::string& key) const {
  const std::vector<std::string> names = session.program().stored_names();
  const std::set<std::string> there(names.begin(), names.end());
  for (const InputSpec& input : state_->program.state) {
    if (input.name != key || input.kind == InputSpec::Kind::user) continue;
    std::string first = key;
    for (const InputSpec& other : state_->program.state)
      if (other.value == input.tied_to) first = other.name;
    if (state_->program.parts.count(first) == 0 && !place_of(first, there)) return {};
    return read_state(
        state_->program, input, [&](const std::string& name) { return session.fetch(name); },
        there);
  }
  return {};
}

void PytorchModel::load(Session& session) const {
  const State& s = *state_;
  const std::vector<std::string> names = session.program().stored_names();
  const std::set<std::string> there(names.begin(), names.end());
  std::map<std::string, std::vector<std::pair<int64_t, const InputSpec*>>> sources;
  for (const InputSpec& input : s.program.inputs) {
    if (input.kind == InputSpec::Kind::user || !input.tied_to.empty()) continue;
    if (const auto place = place_of(input.name, there))
      sources[place->name].emplace_back(place->layer, &input);
  }
  for (const auto& [name, layers] : sources) {
    session.assign_slices(name, [&, &n = name, &all = layers](const Slice& slice) {
      for (const auto& [layer, input] : all) {
        const auto stored = s.program.stored.find(input->name);
        if (stored == s.program.stored.end())
          fail(ErrorKind::io, "[pytorch] '{}' has no elements of '{}'", s.program.path,
               input->name);
        std::vector<int64_t> shape = session.shape_of(n).sizes;
        if (layer >= 0) shape.erase(shape.begin());
        if (const auto part = of_layer(slice, layer))
          read_slice(s.archive, input->name, stored->second, *part, shape);
      }
    });
  }
}

}  // namespace tessera
