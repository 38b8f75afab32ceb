// Mixture of experts: a router gives tokens to experts, all_to_alls bring them there and back, and
// each expert is a feed-forward layer with weights of its own (Shazeer et al. 2017, Lepikhin et al.
// 2021, Fedus et al. 2022).
#pragma once

#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/nn_layers.h"
#include "tessera/ops.h"

namespace tessera::nn {

enum class Gating {
  tokens_choose,   ///< each token its k best experts, first choices first, in order of position
  rescue,          ///< the same, but a further choice counts only for a token without a place
                   ///< ("no token left behind")
  strongest,       ///< each token its best expert, which keeps those with the highest gates
  experts_choose,  ///< each expert the tokens with the highest gates (Zhou et al. 2022)
  tokens_compete,  ///< the same with gates that are softmax over the tokens, and divided by the
                   ///< number of experts that took the token
};
/// Which further choices of a token count: all, none, those whose gate is above `threshold`, or
/// each with probability gate / threshold.
enum class Further { all, none, threshold, random };
enum class Overflow {
  count,  ///< what finds no place is dropped and counted
  error,  ///< a run with a drop that computes anything of dispatch, combine, dropped, load or
          ///< moe().y stores nothing and throws a usage error that names node and line
};

struct RoutingOptions {
  Gating gating = Gating::tokens_choose;
  int64_t choices = 2;      ///< of a token; 1 is a switch transformer
  bool renormalize = true;  ///< the gates of a token with several choices sum to 1
  Further further = Further::all;
  double threshold = 0.2;
  double sample = 0;          ///< if not 0, the first choice is drawn, with this temperature
  double second_balance = 0;  ///< share, in balance, of the same for second choices, whose gates
                              ///< are those without the first, normalized
  /// Places of an expert for each group, if not given: tokens * capacity_factor / experts, at most
  /// tokens, and at least least_capacity.
  double capacity_factor = 1.25;
  int64_t least_capacity = 4;
  /// Places as a dim, one at most. A bounded one may be shorter at run time: with the bound at the
  /// number of tokens nothing is ever dropped, and Session::set_size says what a run is ready to
  /// hold.
  std::vector<Dim> capacity = {};
  Overflow overflow = Overflow::count;
  /// Of tokens: below 1 no first choice, 0 no choice at all (padding); empty: all 1. Some dims of
  /// the logits but experts.
  Tensor importance = {};
  /// A first choice for all above 0; balance and z are still of those with 1.
  bool first_for_all = false;
  /// Probability, drawn for each token, that its best expert is closed to it: its gates are those
  /// of the others. For training. Where tokens choose.
  double second_place = 0;
  double second_sample = 0;  ///< if not 0, one of the others is drawn then, with this temperature,
                             ///< and has the gate 1
};

struct Routing {
  Tensor dispatch;  ///< [groups..., tokens, experts, capacity]: 1 where a token has that place
  Tensor combine;   ///< the same with gates instead of 1
  Tensor balance;   ///< scalar: experts^2 times the mean of (share of tokens whose first choice an
                    ///< expert is) * (mean gate of it); 1 if even. For rescue the mean over all
                    ///< choices; for experts_choose 0; for tokens_compete tokens^2 times the mean
                    ///< square of a token's mean gate
  Tensor z;         ///< scalar: mean of logsumexp(logits)^2 (Zoph et al. 2022), of the experts open
                    ///< to a token, over tokens with importance 1
  Tensor dropped;   ///< scalar: choices that found no place; for experts_choose tokens without one
  Tensor load;      ///< scalar: the most choices that an expert had in a group: capacity enough
};

/// Routes each of the groups by itself. `logits` [groups..., tokens, experts], floating; gates are
/// their softmax, in float32 at least. Throws usage errors for no experts' dim, no tokens' dim, one
/// dim for both, fewer than one choice or more than experts, a second_balance with one, a capacity
/// of zero, of several dims or of a dim that the logits have, an importance with dims that they
/// lack, and a second_place that is no probability, of one expert or where experts choose.
Routing route(Tensor logits, const std::string& tokens, const std::string& experts,
              const RoutingOptions& options = {}, Loc at = Loc::current());

/// How the router sees the embeddings of tokens: after x's elements of the model's dim, added to x,
/// or alone.
enum class Embedded { appended, added, alone };

struct MoeOptions {
  Dim experts = {"experts", 8}, hidden = {"ff", 256};
  std::string tokens = "length";  ///< the other dims of x but the model's are groups
  FeedForwardOptions expert = {.dense = {.bias = false}};
  RoutingOptions routing = {};
  double input_jitter = 0, input_dropout = 0;  ///< of what the router sees
  double balance = 1e-2, z = 0;                ///< shares of the losses
  /// If given, the router sees it as well: x's dims, and x's sizes but the model's if appended.
  /// With stop_gradient() the router does not train it.
  Tensor embedding = {};
  Embedded embedded = Embedded::appended;
};
struct Moe {
  Tensor y;     ///< x's dims; zero where a token found no place
  Tensor loss;  ///< scalar, to be added to the model's
  Routing routing;
};
/// The layer. Parameters "<name>.router.w" [model, experts], with an embedding as long along the
/// model's dim as what the router sees, "<name>.expert.up.w" [experts, model, ff] and
/// "<name>.expert.down.w" [experts, ff, model], without biases unless expert.dense says so. With
/// groups and experts split over one axis the tokens go to their experts and back by an all_to_all
/// each. Experts that no axis divides are padded.
Moe moe(Tensor x, const std::string& name, const std::string& model, const MoeOptions& options = {},
        Loc at = Loc::current());

}  // namespace tessera::nn
