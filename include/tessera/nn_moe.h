// Mixture of experts: a router chooses experts for each token, and each expert is a feed-forward
// layer with its own weights (Shazeer et al. 2017). Either every choice counts, and grouped
// products compute the experts' rows (Gale et al. 2023); or an expert has a capacity, and tokens
// beyond it are dropped (Lepikhin et al. 2021, Fedus et al. 2022).
#pragma once

#include <string>
#include <vector>

#include "tessera/experts.h"
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

/// What the gates of a token are: the softmax of its logits over the experts, or the sigmoid of
/// each (DeepSeek-V3).
enum class Scores { softmax, sigmoid };

struct RoutingOptions {
  Gating gating = Gating::tokens_choose;
  int64_t choices = 2;      ///< experts per token; 1: switch transformer
  bool renormalize = true;  ///< with several choices: divide the gates of a token by their sum
  Scores scores = Scores::softmax;
  double scale = 1;  ///< of the gates, after renormalize
  /// [experts], added to the gates when experts are chosen, but not to the gates that weight their
  /// outputs: it balances experts without a loss (Wang et al. 2024). Empty: none.
  Tensor bias = {};
  /// The experts are in `groups` groups of equal size, and a token chooses among those of its
  /// `best_groups` groups, which have the largest sums of their two best scores. 1: no limit.
  int64_t groups = 1, best_groups = 1;
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
  /// Of route(): [groups..., tokens, experts, capacity], 1 where a token has that place, and the
  /// same with gates instead of 1. Empty after choose().
  Tensor dispatch, combine;
  /// Of choose(): [groups..., tokens, choices], the experts of a token as int32, and their gates.
  /// -1 and 0: the choice does not count. Empty after route().
  Tensor indices, gates;
  Tensor loads;    ///< of choose(): [experts], the number of choices of each expert
  Tensor balance;  ///< scalar load-balancing loss, 1 if even: experts^2 * mean(share of tokens with
                   ///< that first choice * mean gate). rescue: mean over all choices;
                   ///< experts_choose: 0; tokens_compete: tokens^2 * mean((mean gate of a token)^2)
  Tensor z;  ///< scalar router z-loss: mean of logsumexp(logits)^2 over tokens with importance 1
             ///< (Zoph et al. 2022); masked-out experts do not count
  Tensor dropped;  ///< scalar: choices without a place; experts_choose: tokens without one
  Tensor load;     ///< scalar: the largest number of choices of one expert in a group (a sufficient
                   ///< capacity); of choose(), in all groups together
};

/// Routes each group separately. `logits` [groups..., tokens, experts], floating; gates are what
/// `scores` makes of them, in float32 or float64. Throws usage errors for missing or equal `tokens`
/// and `experts` dims, choices outside [1, experts], second_balance with one choice, a capacity of
/// zero, of several dims or of a dim of the logits, an importance with dims that the logits lack,
/// and a second_place that is not a probability, or with one expert, or if experts choose. The same
/// for groups that do not divide the experts, or that have fewer than `choices` experts in the best
/// ones, and for a bias with other dims than `experts`.
Routing route(Tensor logits, const std::string& tokens, const std::string& experts,
              const RoutingOptions& options = {}, Loc at = Loc::current());
/// The choices of tokens (Gating::tokens_choose) without a capacity: nothing is dropped, and
/// dropped is 0. The result has the dim "choices". Throws as route().
Routing choose(Tensor logits, const std::string& tokens, const std::string& experts,
               const RoutingOptions& options = {}, Loc at = Loc::current());

using tessera::Experts;
using tessera::experts;

/// What the router sees if there is an embedding: x and the embedding concatenated along the model
/// dim, their sum, or the embedding alone.
enum class Embedded { appended, added, alone };

struct MoeOptions {
  Dim experts = {"experts", 8}, hidden = {"ff", 256};
  std::string tokens = "length";  ///< x's other dims except the model dim are groups
  FeedForwardOptions expert = {.dense = {.bias = false}};
  RoutingOptions routing = {};
  /// Every choice counts, whatever the capacity of `routing` is. Only if tokens choose; the experts
  /// have no biases, dropout, adapters or float8 matmuls then. false: see RoutingOptions.
  bool dropless = true;
  double dispatch_capacity = 2;  ///< Experts::dispatch_capacity; of no account with a capacity
  /// At most one: the hidden dim, with a name of its own, of an expert that all tokens take.
  std::vector<Dim> shared = {};
  /// If not 0, a state "<name>.router.bias" [experts] is the bias of the routing. Runs that store
  /// updates move it by this step: up for experts with less than the mean load, else down.
  double bias_step = 0;
  double input_jitter = 0, input_dropout = 0;  ///< applied to the router's input
  double balance = 1e-2, z = 0;                ///< weights of the losses
  /// Optional router input with x's dims and sizes; if appended, its model dim may have another
  /// size. Apply stop_gradient() to it to keep the router from training it.
  Tensor embedding = {};
  Embedded embedded = Embedded::appended;
};
struct Moe {
  Tensor y;     ///< x's dims; zero (but for the shared expert) for a dropped token
  Tensor loss;  ///< scalar, to be added to the model's loss
  Routing routing;
};
/// The layer. Parameters: "<name>.router.w" [size of the router's input, experts],
/// "<name>.expert.up.w" [experts, model, ff] ("up0.w", "up1.w" of several activations),
/// "<name>.expert.down.w" [experts, ff, model]; biases only if expert.dense.bias; and of the shared
/// expert "<name>.shared.up.w", "<name>.shared.down.w". If no axis divides the number of experts,
/// it is padded. With a capacity, if groups and experts are split over the same axis, one
/// all_to_all moves the tokens to their experts and one back.
Moe moe(Tensor x, const std::string& name, const std::string& model, const MoeOptions& options = {},
        Loc at = Loc::current());

}  // namespace tessera::nn
