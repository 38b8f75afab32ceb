// Mixture of experts. A router assigns tokens to experts, all_to_alls move them there and back, and
// each expert is a feed-forward layer with its own weights (Shazeer et al. 2017, Lepikhin et al.
// 2021, Fedus et al. 2022).
#pragma once

#include <string>
#include <vector>

#include "tessera/graph.h"
#include "tessera/nn_layers.h"
#include "tessera/ops.h"

namespace tessera::nn {

enum class Gating {
  tokens_choose,  ///< each token takes its k best experts; first choices are placed first, by
                  ///< position
  rescue,     ///< the same, but a further choice counts only for a token that has no place yet ("no
              ///< token left behind")
  strongest,  ///< each token takes its best expert, which keeps the tokens with the highest gates
  experts_choose,  ///< each expert takes the tokens with the highest gates (Zhou et al. 2022)
  tokens_compete,  ///< the same with a softmax over the tokens; the gates of a token are divided by
                   ///< the number of experts that took it
};
/// Which further choices of a token count: all, none, those whose gate is above `threshold`, or
/// each with probability gate / threshold.
enum class Further { all, none, threshold, random };
enum class Overflow {
  count,  ///< tokens over capacity are dropped and counted
  error,  ///< if a token is dropped, a run that computes dispatch, combine, dropped, load or
          ///< moe().y stores nothing and throws a usage error with node and line
};

struct RoutingOptions {
  Gating gating = Gating::tokens_choose;
  int64_t choices = 2;      ///< experts per token; 1: switch transformer
  bool renormalize = true;  ///< with several choices: divide the gates of a token by their sum
  Further further = Further::all;
  double threshold = 0.2;
  double sample = 0;          ///< if not 0, the first choice is sampled at this temperature
  double second_balance = 0;  ///< weight, in Routing::balance, of the balance of second choices;
                              ///< their gates are renormalized without the first choice
  /// Capacity of an expert in each group, if `capacity` is empty: tokens * choices *
  /// capacity_factor / experts (Lepikhin et al. 2021), at most the number of tokens and at least
  /// least_capacity. `choices` counts where tokens choose (tokens_choose, rescue).
  double capacity_factor = 1.25;
  bool capacity_per_choice = true;  ///< false: without the factor `choices`, as Mesh TensorFlow
  int64_t least_capacity = 4;
  /// The capacity as a dim; at most one. If it is bounded by the number of tokens, no token is ever
  /// dropped, and Session::set_size sets the capacity of a run.
  std::vector<Dim> capacity = {};
  Overflow overflow = Overflow::count;
  /// Importance of tokens, with some of the logits' dims except experts. Below 1: no first choice;
  /// 0: no choice at all (padding). Empty: all 1.
  Tensor importance = {};
  /// Tokens with any importance above 0 have a first choice. balance and z still count only tokens
  /// with importance 1.
  bool first_for_all = false;
  /// For training, if tokens choose: the probability (drawn for each token) that its best expert is
  /// masked out, so that it chooses among the others.
  double second_place = 0;
  double second_sample = 0;  ///< if not 0, one of these is sampled at this temperature, with gate 1
};

struct Routing {
  Tensor dispatch;  ///< [groups..., tokens, experts, capacity]: 1 where a token has that place
  Tensor combine;   ///< the same with gates instead of 1
  Tensor balance;  ///< scalar load-balancing loss, 1 if even: experts^2 * mean(share of tokens with
                   ///< that first choice * mean gate). rescue: mean over all choices;
                   ///< experts_choose: 0; tokens_compete: tokens^2 * mean((mean gate of a token)^2)
  Tensor z;  ///< scalar router z-loss: mean of logsumexp(logits)^2 over tokens with importance 1
             ///< (Zoph et al. 2022); masked-out experts do not count
  Tensor dropped;  ///< scalar: choices without a place; experts_choose: tokens without one
  Tensor load;     ///< scalar: the largest number of choices of one expert in a group (a sufficient
                   ///< capacity)
};

/// Routes each group separately. `logits` [groups..., tokens, experts], floating; gates are their
/// softmax, in float32 or float64. Throws usage errors for missing or equal `tokens` and `experts`
/// dims, choices outside [1, experts], second_balance with one choice, a capacity of zero, of
/// several dims or of a dim of the logits, an importance with dims that the logits lack, and a
/// second_place that is not a probability, or with one expert, or if experts choose.
Routing route(Tensor logits, const std::string& tokens, const std::string& experts,
              const RoutingOptions& options = {}, Loc at = Loc::current());

/// What the router sees if there is an embedding: x and the embedding concatenated along the model
/// dim, their sum, or the embedding alone.
enum class Embedded { appended, added, alone };

struct MoeOptions {
  Dim experts = {"experts", 8}, hidden = {"ff", 256};
  std::string tokens = "length";  ///< x's other dims except the model dim are groups
  FeedForwardOptions expert = {.dense = {.bias = false}};
  RoutingOptions routing = {};
  double input_jitter = 0, input_dropout = 0;  ///< applied to the router's input
  double balance = 1e-2, z = 0;                ///< weights of the losses
  /// Optional router input with x's dims and sizes; if appended, its model dim may have another
  /// size. Apply stop_gradient() to it to keep the router from training it.
  Tensor embedding = {};
  Embedded embedded = Embedded::appended;
};
struct Moe {
  Tensor y;     ///< x's dims; zero for a dropped token
  Tensor loss;  ///< scalar, to be added to the model's loss
  Routing routing;
};
/// The layer. Parameters: "<name>.router.w" [size of the router's input, experts],
/// "<name>.expert.up.w" [experts, model, ff], "<name>.expert.down.w" [experts, ff, model]; biases
/// only if expert.dense.bias. If groups and experts are split over the same axis, one all_to_all
/// moves the tokens to their experts and one back. If no axis divides the number of experts, it is
/// padded.
Moe moe(Tensor x, const std::string& name, const std::string& model, const MoeOptions& options = {},
        Loc at = Loc::current());

}  // namespace tessera::nn
