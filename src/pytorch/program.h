// An exported PyTorch program as its file holds it: nodes of ATen ops on values without names of
// dims. Nothing of the file is unpickled.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "pytorch/archive.h"
#include "tessera/dtype.h"

namespace tessera::pytorch {

struct Nodes;

/// torch.dtype. Only those that Tessera can hold are known.
enum class ScalarType : int {
  uint8 = 1,
  int8,
  int16,
  int32,
  int64,
  half,
  float32,
  float64,
  complex64 = 10,
  bool_ = 12,
  bfloat16
};

/// The dtype in Tessera: integers other than bytes are int32. Throws unsupported.
DType dtype_of(ScalarType type);
int64_t bytes_of(ScalarType type);

/// A size that only the data tell, as of x[x > 0].
inline constexpr int64_t kSizeOfData = -1;

struct TensorMeta {
  ScalarType type = ScalarType::float32;
  std::vector<int64_t> sizes;
  std::vector<std::string>
      symbols;  ///< of dynamic sizes, whose value was that of the example: "s77"
  std::vector<int64_t> strides;
  int64_t offset = 0;
};

struct TensorName {
  std::string name;  ///< "": None in a list
};
/// An integer that depends on a dynamic size, with its value for the example.
struct SymInt {
  int64_t value = 0;
  std::string symbol;
};
using Argument = std::variant<std::monostate, TensorName, std::vector<TensorName>, int64_t, double,
                              bool, std::string, std::vector<int64_t>, std::vector<double>, SymInt,
                              ScalarType, std::shared_ptr<const Nodes>>;

struct Node {
  std::string target;                                        ///< "aten.linear.default"
  std::vector<std::pair<std::string, Argument>> args;        ///< with the names of the op's schema
  std::vector<std::string> outputs;                          ///< "" for one that is no tensor
  std::string module;                                        ///< "b.0.attn"; "" for the outermost
  std::vector<std::pair<std::string, std::string>> modules;  ///< paths and classes, outermost first
  std::string file;                                          ///< of the user's Python, or ""
  int line = 0;

  const Argument* find(const std::string& arg) const;
  /// "aten.linear.default in b.0.attn (model.py:12)".
  std::string place() const;
};

/// A graph, also one that is an argument of a node.
struct Nodes {
  std::vector<std::string> inputs, outputs;
  std::vector<Node> nodes;
  std::map<std::string, TensorMeta> tensors;
};

/// One tensor of the weights or constants.
struct StoredTensor {
  std::string entry;  ///< of the archive, "" if the file has no elements of it
  TensorMeta meta;
};

struct InputSpec {
  enum class Kind { user, parameter, buffer, constant };
  Kind kind = Kind::user;
  std::string value;         ///< in the graph
  std::string name;          ///< the state_dict's key; of a user's input the name in forward()
  bool is_exported = true;   ///< part of the state_dict
  std::string tied_to = {};  ///< the first value with the same elements in the file, or ""
  std::string part_of = {};  ///< the state_dict's key of which it is a part (parts.h), or ""
};

/// Some of a parameter's elements, as a parameter of its own.
struct Part {
  std::string name;
  TensorMeta place;  ///< where they lie among those of the whole in row-major order
};

struct ExportedProgram {
  std::string path;
  Nodes graph;
  std::vector<InputSpec> inputs;
  std::vector<std::string> outputs;  ///< values that forward() returns
  std::vector<std::string>
      output_names;  ///< one for each: "logits", else "output", "output_1", ...
  std::string loss;  ///< the value that is marked as one, or ""
  std::map<std::string, std::string> mutations;    ///< new values of buffers, by the buffer's name
  std::map<std::string, StoredTensor> stored;      ///< by the state_dict's key
  std::vector<InputSpec> state;                    ///< `inputs` with whole parameters
  std::map<std::string, std::vector<Part>> parts;  ///< by the state_dict's key
};

/// Reads the description of the program in `archive`. Throws io errors for damage, for a schema
/// that is newer and for pickled contents.
ExportedProgram read_program(const Archive& archive);

}  // namespace tessera::pytorch
