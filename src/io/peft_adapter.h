// The matrices of LoRA, and what was trained beside them, as an adapter of PEFT.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "io/export_source.h"
#include "io/tensor_map.h"

namespace tessera {

/// The tensors, copies included, that training changed beside the matrices of LoRA.
struct TrainedTensors {
  std::vector<const MappedTensor*> tensors;
  /// The elements of any tensor of the map, without LoRA.
  std::function<std::vector<std::byte>(const MappedTensor& tensor, DType dtype)> elements;
};

/// Writes adapter_config.json and adapter_model.safetensors to `folder`, in float32: of each
/// adapted matrix of the map lora_A [rank, in] and lora_B [out, rank], where `rank` is the sum of
/// those of the layers that share it, and the modules with trained tensors (modules_to_save).
/// `base` is the folder of the base model `model`. Returns the number of tensors. Throws usage
/// errors that name a tensor for what PEFT cannot express.
int64_t write_peft_adapter(const std::string& folder, const ExportSource& source,
                           const TensorMap& map, const nn::TransformerOptions& model,
                           const std::string& base, const TrainedTensors& trained);

}  // namespace tessera
