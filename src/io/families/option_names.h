// The options of a transformer by the names that family files give them.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "tessera/nn_transformer.h"

namespace tessera {

/// What the options of a file are written to. It becomes the options of a model by finish().
struct NamedOptions {
  nn::TransformerOptions model = {};
  int64_t window = 0;              ///< of the layers that have one
  std::vector<bool> windows = {};  ///< which layers do; none given: all
  bool rotary = false;             ///< whether any option of "rotary" is given
};

/// Where an option's value goes. Texts are one of the words of name_of_choice().
using OptionField =
    std::variant<int64_t*, int32_t*, double*, bool*, nn::Activation*, nn::NormOptions::Kind*,
                 nn::NormPlacement*, nn::RotaryOptions*, std::vector<bool>*>;

struct OptionName {
  std::string name;
  OptionField (*field)(NamedOptions& options);
  int64_t least = 0, most = int64_t{1} << 40;  ///< of whole numbers
  bool is_required = false;
};

/// All of them, in the order in which a file's options are set.
const std::vector<OptionName>& option_names();

/// The words of an option that is one of several, and their numbers.
const std::vector<std::pair<std::string, int>>& choices_of(const OptionField& field);

/// What follows from the options. Throws usage errors for options that contradict each other.
nn::TransformerOptions finish(NamedOptions options);

}  // namespace tessera
