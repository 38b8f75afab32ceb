#include "pytorch/program.h"

#include <cmath>
#include <sstream>

#include "base/fail.h"
#include "base/json.h"
#include "pytorch/parts.h"
#include "pytorch/reading.h"
#include "pytorch/structure.h"

namespace tessera::pytorch {

namespace {

using Json = nlohmann::json;
constexpr int64_t kSchema = 8;

std::vector<std::string> split(const std::string& text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

/// What stands in the file, read with its path: a missing key or another type is damage.
class Reader {
 public:
  Reader(const std::string& file, const Json& json, std::string path = "")
      : file_(file), json_(json), path_(std::move(path)) {}

  [[noreturn]] void refuse(const std::string& why) const {
    fail(ErrorKind::io, "[pytorch] '{}': its description {} {}", file_,
         path_.empty() ? "" : "at " + path_, why);
  }
  bool has(const char* key) const {
    return json_.is_object() && json_.contains(key) && !json_[key].is_null();
  }
  Reader at(const char* key) const {
    if (!has(key)) refuse(fmt::format("lacks '{}'", key));
    return {file_, json_[key], path_ + "." + key};
  }
  template <class T>
  T get() const {
    try {
      return json_.get<T>();
    } catch (const Json::exception&) {
      refuse(fmt::format("has an unexpected value {}", text_of(json_).substr(0, 60)));
    }
  }
  std::string text(const char* key) const { return has(key) ? at(key).get<std::string>() : ""; }
  std::vector<Reader> items() const {
    if (!json_.is_array()) refuse("is no list");
    std::vector<Reader> all;
    for (size_t i = 0; i < json_.size(); ++i)
      all.emplace_back(file_, json_[i], fmt::format("{}[{}]", path_, i));
    return all;
  }
  std::vector<std::pair<std::string, Reader>> entries() const {
    if (!json_.is_object()) refuse("is no object");
    std::vector<std::pair<std::string, Reader>> all;
    for (const auto& [key, value] : json_.items())
      all.emplace_back(key, Reader(file_, value, path_ + "." + key));
    return all;
  }
  /// The one key of a union, and its value.
  std::pair<std::string, Reader> choice() const {
    const auto all = entries();
    for (const auto& entry : all)
      if (!entry.second.json_.is_null()) return entry;
    refuse("has no value");
  }

 private:
  const std::string& file_;
  const Json& json_;
  std::string path_;
};

/// "s77" of "Symbol('s77', positive=True, integer=True)"; other expressions stay.
std::string symbol_of(const std::string& expression) {
  const std::string front = "Symbol('";
  if (!expression.starts_with(front)) return expression;
  return expression.substr(front.size(), expression.find('\'', front.size()) - front.size());
}

/// A size with its value for the example.
SymInt read_size(const Reader& r) {
  const auto [kind, value] = r.choice();
  if (kind == "as_int") return {value.get<int64_t>(), ""};
  if (kind != "as_expr") value.refuse("is no size");
  if (!value.has("hint")) return {kSizeOfData, value.text("expr_str")};
  return {value.at("hint").choice().second.get<int64_t>(), symbol_of(value.text("expr_str"))};
}

TensorMeta read_meta(const Reader& r) {
  TensorMeta meta;
  meta.type = static_cast<ScalarType>(r.at("dtype").get<int>());
  for (const Reader& size : r.at("sizes").items()) {
    const SymInt n = read_size(size);
    if (n.value < 0 && n.symbol.empty()) size.refuse("is negative");
    meta.sizes.push_back(n.value), meta.symbols.push_back(n.symbol);
  }
  for (const Reader& stride : r.at("strides").items())
    meta.strides.push_back(read_size(stride).value);
  if (meta.strides.size() != meta.sizes.size()) r.refuse("has strides of another rank");
  meta.offset = read_size(r.at("storage_offset")).value;
  return meta;
}

std::string tensor_name(const Reader& r) { return r.at("name").get<std::string>(); }

class GraphReader {
 public:
  Nodes read(const Reader& r) {
    Nodes graph;
    const std::map<std::string, SymInt> outer = symbols_;
    for (const auto& [name, value] : r.at("sym_int_values").entries())
      symbols_[name] = read_size(value);
    for (const auto& [name, value] : r.at("tensor_values").entries())
      graph.tensors.emplace(name, read_meta(value));
    for (const Reader& input : r.at("inputs").items()) graph.inputs.push_back(value_name(input));
    for (const Reader& node : r.at("nodes").items()) graph.nodes.push_back(read_node(node));
    for (const Reader& output : r.at("outputs").items())
      graph.outputs.push_back(value_name(output));
    symbols_ = outer;
    return graph;
  }

 private:
  /// "" for a value that is no tensor.
  static std::string value_name(const Reader& r) {
    const auto [kind, value] = r.choice();
    return kind == "as_tensor" ? tensor_name(value) : "";
  }

  SymInt symbol(const Reader& r) const {
    const auto [kind, value] = r.choice();
    if (kind == "as_int") return {value.get<int64_t>(), ""};
    const auto found = symbols_.find(value.get<std::string>());
    if (found == symbols_.end()) value.refuse("is not known");
    return found->second;
  }

  Argument read_argument(const Reader& r) {
    const auto [kind, value] = r.choice();
    if (kind == "as_none") return {};
    if (kind == "as_tensor") return TensorName{tensor_name(value)};
    if (kind == "as_int") return value.get<int64_t>();
    if (kind == "as_bool") return value.get<bool>();
    if (kind == "as_float") return read_float(value);
    if (kind == "as_string" || kind == "as_operator") return value.get<std::string>();
    if (kind == "as_ints") return value.get<std::vector<int64_t>>();
    if (kind == "as_floats") return value.get<std::vector<double>>();
    if (kind == "as_scalar_type") return static_cast<ScalarType>(value.get<int>());
    if (kind == "as_graph") return std::make_shared<const Nodes>(read(value.at("graph")));
    if (kind == "as_sym_int") {
      const SymInt n = symbol(value);
      return n.symbol.empty() ? Argument(n.value) : Argument(n);
    }
    if (kind == "as_optional_tensor") return read_argument(value);
    if (kind == "as_sym_ints") {
      std::vector<int64_t> all;
      for (const Reader& item : value.items()) all.push_back(symbol(item).value);
      return all;
    }
    if (kind == "as_tensors" || kind == "as_optional_tensors") {
      std::vector<TensorName> all;
      for (const Reader& item : value.items()) {
        if (kind == "as_tensors") {
          all.push_back({tensor_name(item)});
        } else {
          all.push_back({value_name(item)});
        }
      }
      return all;
    }
    // Devices, layouts and memory formats change no number.
    if (kind == "as_device" || kind == "as_layout" || kind == "as_memory_format") return {};
    return "an argument of the kind " + kind;
  }

  static double read_float(const Reader& r) {
    const Json json = r.get<Json>();
    if (json.is_number()) return json.get<double>();
    const std::string text = r.get<std::string>();
    if (text == "Infinity") return INFINITY;
    if (text == "-Infinity") return -INFINITY;
    if (text == "NaN") return NAN;
    r.refuse("is no number");
  }

  Node read_node(const Reader& r) {
    Node node;
    node.target = r.at("target").get<std::string>();
    for (const char* front : {"torch.ops.", "torch._higher_order_ops."})
      if (node.target.starts_with(front)) node.target.erase(0, std::string(front).size());
    for (const Reader& input : r.at("inputs").items())
      node.args.emplace_back(input.text("name"), read_argument(input.at("arg")));
    for (const Reader& output : r.at("outputs").items()) {
      const auto [kind, value] = output.choice();
      if (kind == "as_tensors") {
        for (const Reader& item : value.items()) node.outputs.push_back(tensor_name(item));
      } else {
        node.outputs.push_back(kind == "as_tensor" ? tensor_name(value) : "");
      }
    }
    const Reader metadata = r.at("metadata");
    read_modules(metadata.text("nn_module_stack"), node);
    read_place(metadata.text("stack_trace"), node);
    return node;
  }

  /// "L__self__,,__main__.G;L__self__b.0,b.0,__main__.Block".
  static void read_modules(const std::string& text, Node& node) {
    for (const std::string& entry : split(text, ';')) {
      const std::vector<std::string> parts = split(entry, ',');
      if (parts.size() < 3 || parts[1].starts_with("_empty_nn_module_stack")) continue;
      node.modules.emplace_back(parts[1], parts[2]);
    }
    if (!node.modules.empty()) node.module = node.modules.back().first;
    const size_t call = node.module.find('@');  // a module called twice: "b.0@1"
    if (call != std::string::npos) node.module.erase(call);
  }

  /// The innermost line that is not PyTorch's own: lines `File "/a/model.py", line 20, in forward`.
  static void read_place(const std::string& text, Node& node) {
    const std::string front = "File \"", middle = "\", line ";
    for (const std::string& line : split(text, '\n')) {
      const size_t begin = line.find(front), end = line.find(middle);
      if (begin == std::string::npos || end == std::string::npos) continue;
      const std::string file = line.substr(begin + front.size(), end - begin - front.size());
      bool is_own = file.starts_with("torch/") || file.starts_with("<");
      for (const char* part :
           {"-packages/torch/", "/torch/nn/", "/torch/_", "/torch/functional.py"})
        is_own = is_own || file.find(part) != std::string::npos;
      if (is_own) continue;
      node.file = file;
      node.line = std::atoi(line.c_str() + end + middle.size());
    }
  }

  std::map<std::string, SymInt> symbols_;
};

/// The keys of dicts that a tree of returned values consists of, for each leaf.
void leaf_names(const Json& tree, const std::string& name, std::vector<std::string>& to) {
  if (!tree.is_object() || tree.value("type", Json()).is_null()) {
    to.push_back(name);
    return;
  }
  const Json context = parse_json(tree.value("context", std::string()));
  const Json& children = tree.contains("children_spec") ? tree["children_spec"] : Json();
  for (size_t i = 0; i < children.size(); ++i) {
    const Json& keys = context.is_array() && context.size() == 2 && context[0].is_array() &&
                               context[0].size() == children.size()
                           ? context[0]
                           : context;
    const bool has_key = keys.is_array() && i < keys.size() && keys[i].is_string();
    const std::string key = has_key ? keys[i].get<std::string>() : "";
    leaf_names(children[i], key.empty() ? name : key, to);
  }
}

std::vector<std::string> output_names(const Reader& module, size_t count) {
  std::vector<std::string> names;
  const std::vector<Reader> calls = module.at("module_call_graph").items();
  if (!calls.empty() && calls[0].has("signature")) {
    const Json tree = parse_json(calls[0].at("signature").text("out_spec"));
    if (tree.is_array() && tree.size() == 2) leaf_names(tree[1], "", names);
  }
  names.resize(count);
  std::map<std::string, int> seen;
  for (std::string& name : names) {
    if (name.empty()) name = "output";
    const int before = seen[name]++;
    if (before > 0) name += fmt::format("_{}", before);
  }
  return names;
}

void read_signature(const Reader& module, ExportedProgram& program) {
  using Kind = InputSpec::Kind;
  const Reader signature = module.at("signature");
  for (const Reader& spec : signature.at("input_specs").items()) {
    const auto [kind, value] = spec.choice();
    if (kind == "user_input") {
      const auto [type, arg] = value.at("arg").choice();
      if (type == "as_tensor")
        program.inputs.push_back({Kind::user, tensor_name(arg), tensor_name(arg)});
    } else if (kind == "parameter") {
      program.inputs.push_back(
          {Kind::parameter, tensor_name(value.at("arg")), value.text("parameter_name")});
    } else if (kind == "buffer") {
      program.inputs.push_back(
          {Kind::buffer, tensor_name(value.at("arg")), value.text("buffer_name")});
      if (value.has("persistent"))
        program.inputs.back().is_exported = value.at("persistent").get<bool>();
    } else if (kind == "tensor_constant") {
      program.inputs.push_back(
          {Kind::constant, tensor_name(value.at("arg")), value.text("tensor_constant_name")});
    } else if (kind == "custom_obj") {
      value.refuse("has an object of a class of its own, which only Python can read");
    }
  }
  for (const Reader& spec : signature.at("output_specs").items()) {
    const auto [kind, value] = spec.choice();
    if (kind == "user_output") {
      const auto [type, arg] = value.at("arg").choice();
      program.outputs.push_back(type == "as_tensor" ? tensor_name(arg) : "");
    } else if (kind == "loss_output") {
      program.loss = tensor_name(value.at("arg"));
      program.outputs.push_back(program.loss);
    } else if (kind == "buffer_mutation") {
      program.mutations[value.text("buffer_name")] = tensor_name(value.at("arg"));
    }
  }
  program.output_names = output_names(module, program.outputs.size());
}

void read_stored(const Archive& archive, const std::string& folder, const std::string& config,
                 ExportedProgram& program) {
  const std::string entry = folder + config;
  if (!archive.has(entry)) return;
  const Json json = parse_json(archive.read(entry));
  const Reader all(archive.path(), json, config);
  for (const auto& [name, r] : all.at("config").entries()) {
    if (r.has("use_pickle") && r.at("use_pickle").get<bool>())
      fail(ErrorKind::io,
           "[pytorch] '{}': '{}' is pickled: reading it can run any code, and Tessera does not; "
           "make "
           "it a plain tensor before torch.export.save()",
           archive.path(), name);
    if (!r.has("tensor_meta")) r.refuse("is no tensor");
    const std::string file = r.text("path_name");
    // Modules on the meta device share one entry without elements.
    const bool has_elements = archive.has(folder + file) && archive.size(folder + file) > 0;
    program.stored[name] = {has_elements ? folder + file : "", read_meta(r.at("tensor_meta"))};
  }
}

/// Parameters whose elements are the same bytes are one parameter under several names.
void find_tied(ExportedProgram& program) {
  std::map<std::string, const InputSpec*> first;
  for (InputSpec& input : program.inputs) {
    const auto stored = program.stored.find(input.name);
    if (input.kind != InputSpec::Kind::parameter || stored == program.stored.end()) continue;
    const StoredTensor& t = stored->second;
    if (t.entry.empty()) continue;
    const auto [at, is_first] =
        first.emplace(fmt::format("{} {} {} {}", t.entry, t.meta.offset,
                                  fmt::join(t.meta.sizes, " "), fmt::join(t.meta.strides, " ")),
                      &input);
    if (!is_first) input.tied_to = at->second->value;
  }
}

/// A tied weight of a program without elements: the signature has both names, and the graph uses
/// one, as rows of an embedding and as a matrix. The other then has that value too.
void tie_unused(ExportedProgram& program) {
  std::map<std::string, int> readers;
  for (const Node& node : program.graph.nodes)
    for (const std::string& operand : operands_of(node)) ++readers[operand];
  const auto is_bare = [&](const InputSpec& input) {
    const auto stored = program.stored.find(input.name);
    return input.kind == InputSpec::Kind::parameter && input.tied_to.empty() &&
           (stored == program.stored.end() || stored->second.entry.empty());
  };
  for (size_t i = 0; i < program.inputs.size(); ++i) {
    if (!is_bare(program.inputs[i]) || readers[program.inputs[i].value] > 0) continue;
    for (size_t k = 0; k < program.inputs.size(); ++k) {
      InputSpec &unused = program.inputs[i], &used = program.inputs[k];
      if (!is_bare(used) || readers[used.value] < 2 ||
          program.graph.tensors.at(used.value).sizes !=
              program.graph.tensors.at(unused.value).sizes)
        continue;
      if (i < k) std::swap(used.value, unused.value);  // the first one makes the value
      (i < k ? used : unused).tied_to = (i < k ? unused : used).value;
      break;
    }
  }
}

void require_complete(const ExportedProgram& program) {
  const auto require = [&](const std::string& value, const char* what) {
    if (!value.empty() && program.graph.tensors.count(value) == 0)
      fail(ErrorKind::io, "[pytorch] '{}' is damaged: the {} '{}' is described nowhere",
           program.path, what, value);
  };
  for (const InputSpec& input : program.inputs) require(input.value, "input");
  for (const std::string& output : program.outputs) require(output, "output");
}

}  // namespace

DType dtype_of(ScalarType type) {
  switch (type) {
    case ScalarType::uint8:
      return DType::uint8;
    case ScalarType::int8:
    case ScalarType::int16:
    case ScalarType::int32:
    case ScalarType::int64:
      return DType::int32;
    case ScalarType::half:
      return DType::float16;
    case ScalarType::float32:
    case ScalarType::complex64:  // of its parts
      return DType::float32;
    case ScalarType::float64:
      return DType::float64;
    case ScalarType::bool_:
      return DType::bool_;
    case ScalarType::bfloat16:
      return DType::bfloat16;
    default:
      break;
  }
  fail(ErrorKind::unsupported,
       "a tensor has a dtype that Tessera does not have (torch's number {})",
       static_cast<int>(type));
}

int64_t bytes_of(ScalarType type) {
  switch (type) {
    case ScalarType::int8:
      return 1;
    case ScalarType::int16:
      return 2;
    case ScalarType::int64:
      return 8;
    default:
      return size_of(dtype_of(type));
  }
}

const Argument* Node::find(const std::string& arg) const {
  for (const auto& [name, value] : args)
    if (name == arg) return &value;
  return nullptr;
}

std::string Node::place() const {
  std::string text = target;
  if (!module.empty()) text += " in " + module;
  if (!file.empty()) text += fmt::format(" ({}:{})", file.substr(file.rfind('/') + 1), line);
  return text;
}

ExportedProgram read_program(const Archive& archive) {
  constexpr const char* kModel = "models/model.json";
  if (!archive.has(kModel)) {
    if (archive.has("serialized_state_dict.pt") || archive.has("data.pkl"))
      fail(ErrorKind::io,
           "[pytorch] '{}' is pickled: reading it can run any code, and Tessera does not; write it "
           "with "
           "torch.export.save() of PyTorch 2.9 or later",
           archive.path());
    fail(ErrorKind::io,
         "[pytorch] '{}' holds no program of torch.export.save(): it has no entry '{}'",
         archive.path(), kModel);
  }
  const std::string text = archive.read(kModel);
  const Json json = parse_json(text);
  if (json.is_discarded())
    fail(ErrorKind::io, "[pytorch] '{}' is damaged: {}", archive.path(), json_fault(text));
  const Reader r(archive.path(), json);
  const auto schema = r.at("schema_version").at("major").get<int64_t>();
  if (schema != kSchema)
    fail(ErrorKind::io,
         "[pytorch] '{}' has version {} of the schema (PyTorch {}), and Tessera reads version {}",
         archive.path(), schema, r.text("torch_version"), kSchema);
  ExportedProgram program;
  program.path = archive.path();
  const Reader module = r.at("graph_module");
  program.graph = GraphReader().read(module.at("graph"));
  read_signature(module, program);
  read_stored(archive, "data/weights/", "model_weights_config.json", program);
  read_stored(archive, "data/constants/", "model_constants_config.json", program);
  require_complete(program);
  find_tied(program);
  tie_unused(program);
  find_structure(program);
  find_parts(program);
  return program;
}

}  // namespace tessera::pytorch
