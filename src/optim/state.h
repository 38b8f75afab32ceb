// What the optimizers share: state of a parameter, and which parameters decay.
#pragma once

#include <string>
#include <vector>

#include "tessera/optim.h"

namespace tessera::optim {

Initializer zeros();
/// State "optimizer.<parameter>.<what>" that starts as zeros, of the parameter's shape or of
/// another.
Tensor state_of(Tensor parameter, const char* what);
Tensor state_of(Tensor parameter, const char* what, const Shape& shape);
/// float32 of what is stored in 16 bits; update() rounds what is made of it.
Tensor wide(Tensor stored);
/// `scalar` in the dtype of `like`.
Tensor as_dtype_of(Tensor scalar, Tensor like);
bool any_match(const std::vector<std::string>& globs, Tensor parameter);
/// Throws a usage error of `optimizer` unless least <= value < below.
void require_in(const char* optimizer, const char* option, double value, double least, double below,
                Loc at);
/// Throws a usage error with the nearest name for one of `globs` that no parameter's name matches.
void require_matches(Graph& g, const char* optimizer, const char* option,
                     const std::vector<std::string>& globs, Loc at);
/// weight_decay, or 0 for what does not decay: biases and scales, which start as constants,
/// whatever their rank (heads, d_head).
double decay_of(Tensor parameter, double weight_decay,
                const std::vector<std::string>& no_decay = {});

}  // namespace tessera::optim
