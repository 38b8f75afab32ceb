// Programs of PyTorch: the file that torch.export.save(torch.export.export(module, args), "m.pt2")
// writes, as a model with named dims. The file is read, never unpickled, and no Python is needed.
//
// PyTorch's axes have sizes and no names. Tessera finds them: each op says which axes are one, a
// view where an axis consists of several. What is left are dims, which get the names of the parts
// that they play (vocab, d_model, heads, d_head, ff, batch, length), or those of modules. See
// docs/explanation/names-of-a-pytorch-program.md.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tessera/nn.h"
#include "tessera/session.h"

namespace tessera {

/// A custom op of a program, in ops of Tessera.
struct PytorchOp {
  /// The relation of its axes, "...i,oi->...o": those with one letter are one dim, `...` are
  /// leading axes. "": operands are broadcast to the result.
  std::string axes = {};
  /// The result, with the dims that its letters name; operands have the dims of theirs. `numbers`:
  /// the other arguments, by name.
  std::function<Tensor(const std::vector<Tensor>&, const std::map<std::string, double>& numbers)>
      build;
};

struct PytorchOptions {
  /// Names that the user gives to axes, in clauses of a value or a glob of parameters and a name
  /// for each axis: "tokens: batch length; *.up.weight: ff d_model". "heads*d_head" names an axis
  /// that the program views as two; "_" is any name.
  std::string dims = {};
  /// "cross_entropy(logits, labels)", "cross_entropy(logits, labels, shift=1)", where labels is an
  /// input of the program or a new one, "mean_squared_error(output, target)", or the name of an
  /// output that is a scalar. "": the output that is marked as a loss or called so.
  std::string loss = {};
  /// By name: "my::op".
  std::map<std::string, PytorchOp> ops = {};
};

struct PytorchBuild {
  int64_t batch = 0;             ///< size of the dim "batch"; 0: as exported
  bool partial = false;          ///< the dim batch is bounded
  bool evaluates = false;        ///< no dropout, and batch norm by its running moments
  DType dtype = DType::float32;  ///< of activations that are float32 in the program
  /// Layers that are alike and follow one another are a loop over the dim "layers": one is
  /// compiled, and "layers.mlp.up.weight" holds that of all, layers.0 and so on.
  bool scan = false;
  /// What the program's inputs are, by name, in place of inputs of the graph; its dims, in order,
  /// are the axes.
  std::map<std::string, Tensor> inputs = {};
};

class PytorchModel {
 public:
  static bool is_one(const std::string& path) { return path.ends_with(".pt2"); }

  /// Reads the program, not its weights, and finds its dims. Local. Throws io errors for damage,
  /// for pickled contents and another version; unsupported errors for an op that Tessera does not
  /// know, with its module and the line of the user's Python; usage errors for a claim about dims
  /// that the program contradicts, and for a loss that it does not have.
  explicit PytorchModel(const std::string& path, const PytorchOptions& options = {});
  ~PytorchModel();
  PytorchModel(PytorchModel&&) noexcept;

  const std::string& path() const;
  /// A hash of the program, for checkpoints and ranks to compare.
  const std::string& hash() const;

  /// One dim of a model, with the tensors that have it.
  struct FoundDim {
    std::string name;
    int64_t size = 0;
    std::vector<std::string> inputs, parameters;
  };
  const std::vector<FoundDim>& dims() const;
  /// A user's input: its name, its dims and its dtype.
  struct Input {
    std::string name;
    std::vector<Dim> dims;
    DType dtype = DType::float32;
  };
  const std::vector<Input>& inputs() const;
  const std::vector<std::string>& outputs() const;
  /// Ops of layers that the program writes out in a form that was not recognized, so that they stay
  /// plain ops: "aten.softmax.int in blocks.*.attn (model.py:41), which may be of attention".
  const std::vector<std::string>& plain_ops() const;
  /// The scope of layers with numbers, the first of several: "layers" of
  /// "model.layers.0.up.weight". Empty if there are none.
  std::string layer_scope() const;
  /// What the program needs as `labels` of its loss if that is a new input; "" otherwise.
  const std::string& labels() const;
  bool has_loss() const;
  /// Whether the batch may have another size than the exported one: it is dynamic in the program.
  int64_t exported_batch() const;
  bool has_dynamic_batch() const;

  struct Built {
    nn::Model model;                        ///< without loss if there is none
    std::map<std::string, Tensor> outputs;  ///< by name
    /// What modules return, by path, in the order in which they end: of those that are called once
    /// and make one tensor that is read outside.
    std::vector<std::pair<std::string, Tensor>> modules;
  };
  /// Adds the program to a graph. Parameters have the names of the state_dict. Throws usage errors
  /// for a batch of another size than the exported one if that is not dynamic.
  Built build(Graph& graph, const PytorchBuild& options = {}) const;
  /// Overwrites the parameters and buffers of a session of build() with those of the file. Each
  /// process reads only the slices of its ranks. Collective. Throws io errors.
  void load(Session& session) const;
  bool has_weights() const;
  /// Whether the file has the values of all buffers and constants. One of a module on the meta
  /// device has none: build() takes zeros for them, which do for a plan and not for a run.
  bool has_constants() const;
  /// The tensor of the state_dict with this key, its elements in row-major order, from a session of
  /// build(); nothing for one that the session does not hold. Collective.
  std::optional<Array> fetch(Session& session, const std::string& key) const;
  /// Writes parameters and buffers as the safetensors file `to`, under the names, in the sizes and
  /// dtypes of the state_dict: those of a checkpoint, and what a checkpoint does not hold from the
  /// program's file. module.load_state_dict(safetensors.torch.load_file(to)) takes it. Returns the
  /// number of tensors. Local. Throws usage errors if `to` exists and for a checkpoint of another
  /// model; io errors.
  int64_t export_weights(const std::string& checkpoint, const std::string& to) const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tessera
