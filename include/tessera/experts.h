// Experts: matrices of which each token uses those that it chooses.
#pragma once

#include <string>
#include <vector>

#include "tessera/graph.h"

namespace tessera {

/// Each token's experts, weighted and summed: y = sum over choices of
/// gate (product over i of activations[i](x up[i][e])) down[e], with e = indices[choice].
struct Experts {
  std::vector<Tensor> up;  ///< each [experts, model, ff], one for each of `activations`
  std::vector<std::string> activations = {"relu"};   ///< as activate() knows them
  Tensor down;                                       ///< [experts, ff, model]
  std::string dim = "experts", choices = "choices";  ///< the dims
  /// Where rows travel to the ranks of their experts: how many of them a rank has places for from
  /// each rank, as a multiple of the mean, at least 1. If a step has more, it is repeated with four
  /// times as many places. 0: places for all, so that no step is repeated.
  double dispatch_capacity = 2;
};
/// x [tokens..., model]; indices (int32) and gates [tokens..., choices]. Result: the dims of x. An
/// index outside of the experts counts 0. If ranks have slices of the experts, each computes the
/// rows of its own experts for all tokens of those ranks: x is all-gathered and y reduce-scattered.
/// Backward of a loop over layers computes hidden rows again. Throws usage errors for other dims
/// and for a dispatch_capacity below the mean.
Tensor experts(Tensor x, Tensor indices, Tensor gates, const Experts& weights,
               Loc at = Loc::current());

}  // namespace tessera
