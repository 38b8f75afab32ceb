#include "pytorch/loss.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera::pytorch {

namespace {

std::string trimmed_text(const std::string& text) {
  const size_t begin = text.find_first_not_of(' '), end = text.find_last_not_of(' ');
  return begin == std::string::npos ? "" : text.substr(begin, end - begin + 1);
}

/// The value of an output or input of this name; "logits" and "output" also are the only output.
std::string find_value(const ExportedProgram& program, const std::string& name) {
  for (size_t i = 0; i < program.outputs.size(); ++i)
    if (program.output_names[i] == name) return program.outputs[i];
  if (program.outputs.size() == 1 && (name == "logits" || name == "output"))
    return program.outputs[0];
  for (const InputSpec& input : program.inputs)
    if (input.kind == InputSpec::Kind::user && input.name == name) return input.value;
  return "";
}

}  // namespace

std::string add_loss(ExportedProgram& program, const std::string& text) {
  const auto is_scalar = [&](const std::string& value) {
    return !value.empty() && program.graph.tensors.at(value).sizes.empty();
  };
  if (text.empty()) {
    const std::string value = find_value(program, "loss");
    if (program.loss.empty() && is_scalar(value)) program.loss = value;
    return "";
  }
  const size_t open = text.find('(');
  if (open == std::string::npos) {
    const std::string value = find_value(program, trimmed_text(text));
    TESSERA_REQUIRE(is_scalar(value),
                    "[pytorch] the loss '{}' is no output of the program that is a scalar{}", text,
                    suggestion(text, program.output_names));
    program.loss = value;
    return "";
  }
  TESSERA_REQUIRE(text.ends_with(')'), "[pytorch] the loss '{}' has no closing bracket", text);
  const std::string function = trimmed_text(text.substr(0, open));
  std::vector<std::string> args;
  int64_t shift = 0;
  for (size_t begin = open + 1; begin < text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size() - 1);
    const std::string arg = trimmed_text(text.substr(begin, end - begin));
    begin = end + 1;
    if (arg.starts_with("shift=")) {
      shift = std::atoll(arg.c_str() + 6);
    } else if (!arg.empty()) {
      args.push_back(arg);
    }
  }
  const bool classifies = function == "cross_entropy";
  TESSERA_REQUIRE(
      classifies || function == "mean_squared_error",
      "[pytorch] the loss '{}' has an unknown function; known: cross_entropy, mean_squared_error",
      text);
  TESSERA_REQUIRE(args.size() == 2,
                  "[pytorch] the loss '{}' needs two tensors, as {}(output, target)", text,
                  function);
  TESSERA_REQUIRE(shift == 0 || (classifies && shift > 0),
                  "[pytorch] the loss '{}' has a shift that it cannot have", text);
  const std::string output = find_value(program, args[0]);
  TESSERA_REQUIRE(!output.empty(),
                  "[pytorch] the loss '{}' reads '{}', which is no output of the program{}", text,
                  args[0], suggestion(args[0], program.output_names));
  TensorMeta meta = program.graph.tensors.at(output);
  TESSERA_REQUIRE(!classifies || meta.sizes.size() > 1,
                  "[pytorch] the loss '{}' reads '{}', which has no classes", text, args[0]);
  std::string target = find_value(program, args[1]), added;
  if (target.empty()) {
    target = added = args[1];
    TensorMeta labels = meta;
    if (classifies) {
      labels.type = ScalarType::int64;
      labels.sizes.pop_back(), labels.symbols.pop_back(), labels.strides.pop_back();
    }
    program.graph.tensors[target] = labels;
    program.inputs.push_back({InputSpec::Kind::user, target, target});
  }
  Node node;
  node.target = classifies ? "tessera.cross_entropy" : "aten.mse_loss.default";
  node.args = {{"self", TensorName{output}}, {"target", TensorName{target}}, {"shift", shift}};
  node.outputs = {"tessera_loss"};
  node.file = "--loss", node.line = 1;
  meta.sizes.clear(), meta.symbols.clear(), meta.strides.clear();
  program.graph.tensors["tessera_loss"] = meta;
  program.graph.nodes.push_back(node);
  program.loss = "tessera_loss";
  return added;
}

}  // namespace tessera::pytorch
