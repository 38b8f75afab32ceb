// Helpers of the optimizers: the state of a parameter, and which parameters decay.
#pragma once

#include <string>
#include <vector>

#include "tessera/optim.h"

namespace tessera::optim {

Initializer zeros();
/// State "optimizer.<parameter>.<what>", initially zero, in the parameter's shape or in `shape`.
Tensor state_of(Tensor parameter, const char* what);
Tensor state_of(Tensor parameter, const char* what, const Shape& shape);
/// A 16-bit stored tensor as float32. update() rounds the new value.
Tensor wide(Tensor stored);
/// `scalar` in the dtype of `like`.
Tensor as_dtype_of(Tensor scalar, Tensor like);
/// 1 / (1 - beta^t), the bias correction of a moving average that started at zero.
Tensor bias_correction(Tensor t, double beta);
bool any_match(const std::vector<std::string>& globs, Tensor parameter);
/// Throws a usage error in the name of `optimizer` unless least <= value < below.
void require_in(const char* optimizer, const char* option, double value, double least, double below,
                Loc at);
/// Throws a usage error with the nearest name if one of `globs` matches no parameter's name.
void require_matches(Graph& g, const char* optimizer, const char* option,
                     const std::vector<std::string>& globs, Loc at);
/// weight_decay, or 0 for a parameter that does not decay: see AdamOptions::weight_decay. `all`:
/// the rule does not count, only `no_decay` does. The graph notes it.
double decay_of(Tensor parameter, double weight_decay,
                const std::vector<std::string>& no_decay = {}, bool all = false);

}  // namespace tessera::optim
