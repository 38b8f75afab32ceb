"""Cases of mixtures of experts: each gating, whole layers with their losses."""
from values_layers_case import CASES, Dim, mtf, np, tf
import mesh_tensorflow.transformer.moe as moe

batch, length, model = Dim("batch", 2), Dim("length", 8), Dim("model", 5)
EVERY = [[1] * 8] * 2
SOME = [[1, 1, .5, 1, 0, 1, .5, 1], [1, 1, 1, 0, 0, .5, 1, 1]]
PADDED = [[1, 1, 1, 1, 1, 1, 0, 0], [1, 1, 1, 1, 1, 0, 0, 0]]
GATINGS = {"top_2": "top_2_gating", "top_n": "top_n_gating", "switch": "switch_gating", "ntlb": "ntlb_gating",
           "switch_max": "switch_max_gating", "expert_selection": "expert_selection_gating"}


def experts(gating, train=False, importance=None, activation=mtf.relu, with_loss=True, **options):
    settings = dict(gating=gating, num_experts=4, loss_coef=1.0, hidden_size=6, group_size=8, min_expert_capacity=2,
                    capacity_factor_train=1.0, capacity_factor_eval=1.0, use_second_place_loss=0, second_policy_train="all",
                    second_policy_eval="all", second_threshold_train=.2, second_threshold_eval=.2, dropout_rate=0.0,
                    switch_policy_train="argmax", switch_policy_eval="argmax", ntlb_top_k=2, use_experts_attention=False, z_loss=None,
                    word_embed_mode=None, use_second_place_expert_prob=None, use_second_place_expert_prob_temp=None,
                    top_n_num_experts_per_token=3)
    settings.update(options)

    def build(c):
        c.dims = {"expert_unsplit": "experts", "expert_hidden": "ff"}
        c.names = {GATINGS[gating] + "/kernel": "layer.router.w", "wo/kernel": "layer.expert.down.w", "wi/kernel": "layer.expert.up.w",
                   "wi_0/kernel": "layer.expert.up0.w", "wi_1/kernel": "layer.expert.up1.w"}
        x = c.input("x", [batch, length, model], -3, 3.)
        counted = c.input("importance", [batch, length], values=np.float32(importance)) if importance else None
        embedding = c.input("embedding", [batch, length, model], -3, 3.) if settings["word_embed_mode"] else None
        y, loss = moe.transformer_moe_layer_v1(x, model, moe.HParams(**{f"moe_{k}": v for k, v in settings.items()}), train,
                                               mtf.VariableDType(), "", "x:1", counted, activation, 1, embedding)
        c.output("y", y)
        if with_loss:
            c.output("loss", loss)
    return build


CASES["moe_top_2"] = experts("top_2")
CASES["moe_top_2_none"] = experts("top_2", second_policy_eval="none")
CASES["moe_top_2_threshold"] = experts("top_2", second_policy_eval="threshold")
CASES["moe_top_2_importance"] = experts("top_2", importance=SOME)
CASES["moe_top_2_z"] = experts("top_2", True, EVERY, z_loss=0.1)
CASES["moe_top_2_z_padded"] = experts("top_2", True, PADDED, z_loss=0.1)
CASES["moe_top_2_second_place_loss"] = experts("top_2", use_second_place_loss=1)
CASES["moe_top_2_geglu"] = experts("top_2", activation=["gelu", "linear"], capacity_factor_eval=2.0)
CASES["moe_top_3"] = experts("top_n")
CASES["moe_top_3_padded"] = experts("top_n", importance=PADDED)
CASES["moe_top_3_importance"] = experts("top_n", importance=SOME)
CASES["moe_switch"] = experts("switch")
# Its loss counts the choices of padding, which that of top_2 does not.
CASES["moe_switch_padded"] = experts("switch", importance=PADDED, with_loss=False)
CASES["moe_no_token_left_behind"] = experts("ntlb")
CASES["moe_switch_max"] = experts("switch_max")
CASES["moe_expert_selection"] = experts("expert_selection", importance=EVERY)
CASES["moe_expert_selection_padded"] = experts("expert_selection", importance=PADDED)
# Of every token, as nothing drawn can be compared.
for gating in ["switch", "switch_max", "ntlb"]:
    CASES[f"moe_{gating}_second_place"] = experts(gating, True, EVERY, z_loss=0.1, use_second_place_expert_prob=1.0)
for mode in ["concat", "concat_stop_grad", "add", "add_stop_grad", "embed_only"]:
    CASES[f"moe_{mode}"] = experts("top_2", word_embed_mode=mode)
CASES["moe_two_in_a_group"] = experts("top_2", group_size=4, capacity_factor_eval=1.5)
