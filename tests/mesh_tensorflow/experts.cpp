// The mixtures of experts of mesh_tensorflow_layers.h.
#include "mesh_tensorflow/layers.h"

namespace tessera::test {

namespace {

using nn::Further, nn::Gating, nn::RoutingOptions;

nn::MoeOptions layer(const RoutingOptions& routing) {
  nn::MoeOptions o;
  o.experts = {"experts", 4};
  o.hidden = {"ff", 6};
  o.balance = 1;
  o.routing = routing;
  o.routing.capacity_factor = 1;
  o.routing.capacity_per_choice = false;
  o.routing.least_capacity = 2;
  o.dropless = false;
  return o;
}

MtfBuild experts(const nn::MoeOptions& options, bool trains_embedding = true) {
  return [=](const MtfInputs& x) {
    nn::MoeOptions o = options;
    if (x.has("importance")) o.routing.importance = x("importance");
    if (x.has("embedding"))
      o.embedding = trains_embedding ? x("embedding") : stop_gradient(x("embedding"));
    const nn::Moe made = nn::moe(x("x"), "layer", "model", o);
    return MtfResults({{"y", made.y}, {"loss", made.loss}});
  };
}

}  // namespace

void add_mtf_experts(MtfRows& rows) {
  RoutingOptions two, none, threshold, three, one, rescue, strongest, chosen;
  rows["moe_top_2"] = rows["moe_top_2_importance"] = experts(layer(two));
  none.further = Further::none;
  rows["moe_top_2_none"] = experts(layer(none));
  threshold.further = Further::threshold;
  rows["moe_top_2_threshold"] = experts(layer(threshold));
  nn::MoeOptions z = layer(two), gated = layer(two), second = layer(two);
  z.z = 0.1;
  rows["moe_top_2_z"] = rows["moe_top_2_z_padded"] = experts(z);
  second.routing.second_balance = 0.5;
  rows["moe_top_2_second_place_loss"] = experts(second);
  gated.expert.activations = {"gelu", "linear"};
  gated.routing.capacity_factor = 2;
  rows["moe_top_2_geglu"] = experts(gated);
  three.choices = 3;
  rows["moe_top_3"] = rows["moe_top_3_padded"] = experts(layer(three));
  three.first_for_all = true;
  rows["moe_top_3_importance"] = experts(layer(three));
  one.choices = 1;
  rows["moe_switch"] = rows["moe_switch_padded"] = experts(layer(one));
  rescue.gating = Gating::rescue;
  rescue.renormalize = false;
  rows["moe_no_token_left_behind"] = experts(layer(rescue));
  strongest.gating = Gating::strongest;
  strongest.choices = 1;
  rows["moe_switch_max"] = experts(layer(strongest));
  chosen.gating = Gating::tokens_compete;
  rows["moe_expert_selection"] = rows["moe_expert_selection_padded"] = experts(layer(chosen));
  for (const auto& [name, routing] :
       {std::pair("switch", one), {"switch_max", strongest}, {"ntlb", rescue}}) {
    nn::MoeOptions second = layer(routing);
    second.routing.second_place = 1;
    second.z = 0.1;
    rows[std::string("moe_") + name + "_second_place"] = experts(second);
  }
  nn::MoeOptions appended = layer(two), added = appended, alone = appended;
  rows["moe_concat"] = experts(appended);
  rows["moe_concat_stop_grad"] = experts(appended, false);
  added.embedded = nn::Embedded::added;
  rows["moe_add"] = experts(added);
  rows["moe_add_stop_grad"] = experts(added, false);
  alone.embedded = nn::Embedded::alone;
  rows["moe_embed_only"] = experts(alone);
  // A group is a dim: rows of 8 tokens are two of 4.
  rows["moe_two_in_a_group"] = [=](const MtfInputs& x) {
    nn::MoeOptions o = layer(two);
    o.routing.capacity_factor = 1.5;
    const Shape shape = x("x").shape();
    Tensor groups = reshape(x("x"), {Dim("batch", 4), Dim("length", 4), x("x").dim("model")});
    const nn::Moe made = nn::moe(groups, "layer", "model", o);
    return MtfResults({{"y", reshape(made.y, shape)}, {"loss", made.loss}});
  };
}

}  // namespace tessera::test
