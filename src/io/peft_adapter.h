// The matrices of LoRA as an adapter of PEFT.
#pragma once

#include <string>

#include "io/export_source.h"
#include "io/tensor_map.h"

namespace tessera {

/// Writes adapter_config.json and adapter_model.safetensors to `folder`: of each adapted tensor of
/// the map lora_A [rank, in] and lora_B [out, rank] in float32. `base` is the folder of the base
/// model `model`. Returns the number of tensors. Throws a usage error for a tensor that several
/// layers share.
int64_t write_peft_adapter(const std::string& folder, const ExportSource& source,
                           const TensorMap& map, const nn::TransformerOptions& model,
                           const std::string& base);

}  // namespace tessera
