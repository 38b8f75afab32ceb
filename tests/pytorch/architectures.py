#!/usr/bin/env python3
"""Exports tiny random models of transformers' architectures, with what PyTorch computes of them, into a folder.

The hidden test [pytorch_cases] then imports each and compares: TESSERA_PYTORCH_CASES=FOLDER tessera_tests '[pytorch_cases]'.
Usage: architectures.py FOLDER [NAME...]
       architectures.py --table RESULTS FOLDER > docs/reference/pytorch-architectures.md
where RESULTS is what the test printed."""

import functools
import inspect
import json
import pathlib
import sys
import time
import warnings

import torch
from transformers import AutoModel, AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fixtures

warnings.filterwarnings("ignore")

# One value for each spelling of an option; a configuration takes those that it knows.
SMALL = dict(
    hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=96,
    max_position_embeddings=64, n_embd=32, n_layer=2, n_head=4, d_model=32, n_layers=2, n_heads=4, num_experts=4, num_local_experts=4,
    n_routed_experts=4, num_experts_per_tok=2, moe_intermediate_size=16, shared_expert_intermediate_size=16, linear_num_key_heads=2,
    linear_num_value_heads=4, linear_key_head_dim=8, linear_value_head_dim=8, state_size=8, num_heads=4, n_groups=1, mamba_d_state=8,
    mamba_n_heads=4, mamba_d_head=16, mamba_d_ssm=64, expand=2, image_size=32, patch_size=8, embed_dim=16, depths=[1, 1, 1, 1],
    hidden_sizes=[16, 16, 16, 16], q_lora_rank=16, kv_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8, v_head_dim=8, n_group=1,
    topk_group=1, first_k_dense_replace=1, sliding_window=8, ffn_dim=48, word_embed_proj_dim=32, pad_token_id=0, bos_token_id=1,
    eos_token_id=2, mamba_num_heads=4, mamba_head_dim=16, ssm_state_size=8)
# Of torchvision and timm, as "library:name"; images of 64 x 64 unless a size follows.
TIMM = """resnet18 resnext50_32x4d seresnet50 regnety_002 densenet121 mobilenetv2_050 mobilenetv3_small_050 efficientnet_b0 ghostnet_100
convnext_atto convnextv2_atto convmixer_768_32 mixer_s32_224 resmlp_12_224 gmlp_ti16_224 vit_tiny_patch16_224 deit_tiny_patch16_224
deit3_small_patch16_224 beit_base_patch16_224 cait_xxs24_224 swin_tiny_patch4_window7_224 pvt_v2_b0 poolformer_s12 edgenext_xx_small
mobilevit_xxs repvgg_a0 vgg11_bn inception_v3 xception41 hrnet_w18_small""".split()
TORCHVISION = """alexnet squeezenet1_1 shufflenet_v2_x0_5 mnasnet0_5 googlenet densenet121 resnet18 vit_b_32 swin_t maxvit_t""".split()
OF_IMAGES = [f"timm:{name}" for name in TIMM] + [f"torchvision:{name}" for name in TORCHVISION]

# What some need besides: sizes that have to fit one another, or one for each stage.
OWN = dict(
    gptj=dict(rotary_dim=8), deepseek_v3=dict(head_dim=8, qk_rope_head_dim=8), deepseek_v2=dict(head_dim=8), dots1=dict(n_shared_experts=1),
    mamba2=dict(head_dim=16, num_heads=4), rwkv=dict(rescale_every=0), lfm2_moe=dict(num_dense_layers=1, layer_types=["conv", "full_attention"]),
    swin=dict(num_heads=[2, 2, 2, 2], depths=[1, 1, 1, 1], window_size=2, patch_size=2), swinv2=dict(num_heads=[2, 2, 2, 2], window_size=2, patch_size=2),
    segformer=dict(num_attention_heads=[1, 2, 2, 2], depths=[1, 1, 1, 1], hidden_sizes=[16, 16, 16, 16]),
    pvt=dict(num_attention_heads=[1, 2, 2, 2], depths=[1, 1, 1, 1], hidden_sizes=[16, 16, 16, 16], patch_sizes=[4, 2, 2, 2]),
    hiera=dict(image_size=[32, 32], num_heads=[1, 1, 2, 2], patch_size=[7, 7], embed_dim=16),
    falcon_h1=dict(mamba_d_head=16, mamba_n_heads=4, mamba_n_groups=1), bamba=dict(attn_layer_indices=[1]),
    zamba2=dict(num_hidden_layers=2, layers_block_type=["mamba", "hybrid"], num_mem_blocks=1, mamba_headdim=16, n_mamba_heads=4))
DECODERS = """llama mistral qwen2 qwen3 gemma gemma2 gemma3_text olmo olmo2 olmo3 phi phi3 granite starcoder2 stablelm cohere cohere2 glm
glm4 smollm3 gpt2 gpt_neox gptj opt bloom falcon mpt mixtral qwen2_moe qwen3_moe gpt_oss granitemoe deepseek_v3 deepseek_v2 glm4_moe olmoe
phimoe minimax minimax_m2 ernie4_5 ernie4_5_moe hunyuan_v1_dense llama4_text qwen3_next qwen3_5_text mamba mamba2 falcon_mamba falcon_h1
nemotron nemotron_h granitemoehybrid bamba jamba zamba2 rwkv recurrent_gemma lfm2 lfm2_moe kimi_linear xlstm nanochat seed_oss arcee helium
exaone4 dots1 bitnet apertus""".split()
ENCODERS = "bert roberta distilbert electra albert deberta-v2 modernbert esm nystromformer longformer xlnet".split()
VISION = """vit deit beit dinov2 swin swinv2 convnext convnextv2 resnet regnet mobilenet_v2 segformer pvt hiera efficientnet""".split()
def image_model(name):
    """The module, with few layers where it has an option for it, and the sizes of its images."""
    library, _, kind = name.partition(":")
    torch.manual_seed(0)
    size = 224 if any(kind.endswith(f"{end}224") for end in ("_",)) or kind in ("vit_b_32", "swin_t", "maxvit_t") else 64
    size = 96 if kind in ("inception_v3", "alexnet", "googlenet") else size
    if library == "timm":
        import timm

        options = dict(depth=1) if "vit_" in kind or "deit" in kind or "beit" in kind else {}
        return timm.create_model(kind, num_classes=10, **options).eval(), size
    import torchvision

    return torchvision.models.get_model(kind, weights=None, num_classes=10).eval(), size


def of_transformers(kind, auto, **options):
    import transformers

    return getattr(transformers, auto)(CONFIG_MAPPING[kind](**options)).eval()


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def words(*shape):
    return torch.randint(3, 60, shape, generator=torch.Generator().manual_seed(2))


class OfGraph(torch.nn.Module):
    """Two layers of torch_geometric over one graph."""

    def __init__(self, layer, **options):
        super().__init__()
        self.one, self.two = layer(6, 8, **options), layer(8, 3, **options)

    def forward(self, x, edges):
        return self.two(torch.relu(self.one(x, edges)), edges)


def of_graph(kind):
    import torch_geometric.nn as layers

    edges = torch.randint(0, 12, (2, 30), generator=torch.Generator().manual_seed(2))
    if kind == "GINConv":

        class Gin(torch.nn.Module):
            def __init__(self, a, b):
                super().__init__()
                self.layer = layers.GINConv(torch.nn.Sequential(torch.nn.Linear(a, b), torch.nn.ReLU(), torch.nn.Linear(b, b)))

            def forward(self, x, edges):
                return self.layer(x, edges)

        return OfGraph(Gin), (numbers(12, 6), edges), {}
    loops = dict(add_self_loops=False) if kind in ("GATConv", "GCNConv") else {}  # whose number depends on the data
    return OfGraph(getattr(layers, kind), **loops), (numbers(12, 6), edges), {}


def unet(with_text):
    import diffusers

    small = dict(sample_size=8, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4)
    if with_text:
        model = diffusers.UNet2DConditionModel(down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
                                               cross_attention_dim=12, attention_head_dim=4, **small)
        return model, (numbers(2, 3, 8, 8), torch.tensor([3, 9]), numbers(2, 5, 12)), dict(return_dict=False)
    model = diffusers.UNet2DModel(down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"), attention_head_dim=4, **small)
    return model, (numbers(2, 3, 8, 8), torch.tensor([3, 9])), dict(return_dict=False)


def dit():
    import diffusers

    model = diffusers.DiTTransformer2DModel(num_attention_heads=2, attention_head_dim=8, in_channels=4, out_channels=8, num_layers=2, sample_size=8, patch_size=2,
                                            norm_num_groups=4, num_embeds_ada_norm=10)
    return model, (numbers(2, 4, 8, 8), torch.tensor([3, 9]), torch.tensor([1, 7])), dict(return_dict=False)


SPEECH = dict(d_model=16, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=24, decoder_ffn_dim=24, vocab_size=64,
              num_mel_bins=8, max_source_positions=16, max_target_positions=12, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
OTHERS = {
    "whisper": lambda: (of_transformers("whisper", "WhisperForConditionalGeneration", **SPEECH), (), dict(input_features=numbers(2, 8, 32), decoder_input_ids=words(2, 6), use_cache=False)),
    "clip": lambda: (of_transformers("clip", "CLIPModel", text_config=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=64,
                     max_position_embeddings=12, eos_token_id=2), vision_config=dict(hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, image_size=16,
                     patch_size=8), projection_dim=12), (), dict(input_ids=words(2, 8), pixel_values=numbers(2, 3, 16, 16))),
    "wav2vec2": lambda: (of_transformers("wav2vec2", "Wav2Vec2ForCTC", hidden_size=16, intermediate_size=24, num_hidden_layers=2, num_attention_heads=4, vocab_size=32, conv_dim=[8, 8],
                         conv_stride=[5, 2], conv_kernel=[10, 3], num_feat_extract_layers=2, num_conv_pos_embeddings=8, num_conv_pos_embedding_groups=2, feat_extract_norm="group"),
                         (), dict(input_values=numbers(2, 400))),
    "diffusers:unet": lambda: unet(False), "diffusers:unet_with_text": lambda: unet(True), "diffusers:dit": dit,
    "geometric:gcn": lambda: of_graph("GCNConv"), "geometric:gat": lambda: of_graph("GATConv"), "geometric:sage": lambda: of_graph("SAGEConv"), "geometric:gin": lambda: of_graph("GINConv")}


def research(name):
    import research_models

    return next((module, given, {}) for kind, module, given in research_models.cases() if kind == name)


for kind in """RecurrentTagger FactorizationMachine RotaryDecoder LinearAttention NeuralOde FourierOperator BilinearRelations SlotAttention
SecondOrder MixtureDensity""".split():
    OTHERS[f"research:{kind}"] = functools.partial(research, kind)


def model_of(name):
    kind = CONFIG_MAPPING[name]
    known = set(getattr(kind, "__dataclass_fields__", {})) or set(inspect.signature(kind.__init__).parameters)
    options = {**SMALL, **OWN.get(name, {})}
    config = kind(**{k: v for k, v in options.items() if k in known})
    try:
        config.layer_types = config.layer_types[:2]
    except (AttributeError, TypeError):
        pass  # it has none, or computes them
    torch.manual_seed(0)
    auto = AutoModelForCausalLM if name in DECODERS else AutoModel
    try:
        return auto.from_config(config, attn_implementation="sdpa").eval()
    except ValueError:
        return auto.from_config(config, attn_implementation="eager").eval()


TABLE = """# PyTorch architectures, exported

{count} models, exported by PyTorch {torch} without a change: tiny random ones of transformers {transformers}, models of {libraries},
two U-Nets and a transformer of diffusers, networks of torch_geometric, and ten models in plain PyTorch that
were written for this (`tests/pytorch/architectures.py`, `tests/pytorch/research_models.py`). Each was imported, and its outputs
and the gradients of all parameters compared with PyTorch's, on one rank and in up to {layouts} layouts: tensor parallel, uneven over three
ranks, and one dim at a time.

Equal means within 1e-5 of the size of a tensor. **{equal} of {count} are equal**, without a name
given by hand.{near_ties}

| architecture | result | largest difference of an output | of a gradient | dims that were found |
|---|---|---|---|---|
"""


NEAR_TIES = """ In {} of them a maximum or a ReLU has near ties, and PyTorch in float32 is as far from PyTorch in
float64; there equal means within twice that distance."""


IN_FLOAT64 = """ In {} more rounding decides which of two nearly equal
elements is a maximum, or whether one is above zero; in float64 both are equal."""


def table(results, folder):
    import transformers

    rows, equal, layouts, near_ties, in_float64 = [], 0, 0, 0, 0
    for line in pathlib.Path(results).read_text().splitlines():
        cells = line.split("\t")
        if len(cells) > 6 and cells[1].startswith("equal"):
            equal, layouts = equal + 1, max(layouts, int(cells[2]) - 1)
            near_ties += float(cells[5]) > 5e-6 and max(float(cells[3]), float(cells[4])) > 1e-5
            in_float64 += cells[1] != "equal"
            dims = " ".join(f"{n.split('=')[0]}" for n in cells[-1].split())
            rows.append(f"| {cells[0]} | {cells[1]} | {cells[3]} | {cells[4]} | {dims} |")
        elif len(cells) > 2 and cells[1] in ("DIFFERENT", "error"):
            why = cells[2].split("': ", 1)[-1] if cells[1] == "error" else f"differs by {cells[4]}"
            rows.append(f"| {cells[0]} | refused: {why} | | | |" if cells[1] == "error" else f"| {cells[0]} | {why} | | | |")
    print(TABLE.format(count=len(rows), equal=equal, layouts=layouts, near_ties=(NEAR_TIES.format(near_ties) if near_ties else "") + (IN_FLOAT64.format(in_float64) if in_float64 else ""), libraries=" and ".join(sorted({r.split()[1].split("-")[0] for r in rows} & {"timm", "torchvision"})), transformers=transformers.__version__,
                       torch=torch.__version__.split("+")[0]) + "\n".join(rows))
    failed = {}
    for name, why in json.loads((pathlib.Path(folder) / "not_exported.json").read_text()).items():
        if not (pathlib.Path(folder) / f"{name}.safetensors").exists():
            failed[name] = why
    if failed:
        print("\nNot exported by PyTorch in this configuration: " + ", ".join(sorted(failed)) + ".")


def main():
    if sys.argv[1] == "--table":
        return table(sys.argv[2], sys.argv[3])
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    failed = {}
    for name in sys.argv[2:] or DECODERS + ENCODERS + VISION + OF_IMAGES + list(OTHERS):
        start = time.time()
        if ":" in name or name in OTHERS:
            try:
                torch.manual_seed(0)
                if name in OTHERS:
                    model, args, kwargs = OTHERS[name]()
                else:
                    model, size = image_model(name)
                    args, kwargs = (torch.randn(2, 3, size, size),), {}
                fixtures.write(model.eval(), args, kwargs, folder / name.replace(":", "-"), exact=True)
                print(f"{name} {time.time() - start:.1f} s", flush=True)
            except Exception as error:
                failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
                print(name, failed[name], flush=True)
            continue
        if name not in CONFIG_MAPPING:
            failed[name] = "transformers does not have it"
            continue
        try:
            model = model_of(name)
            ids = torch.randint(3, 90, (2, 16), generator=torch.Generator().manual_seed(2))
            size = 64 if name.startswith("convnext") else 32
            given = dict(pixel_values=torch.randn(2, 3, size, size)) if name in VISION else dict(input_ids=ids)
            if name in DECODERS:
                given["use_cache"] = False
            fixtures.write(model, (), given, folder / name, exact=True)
            print(f"{name} {time.time() - start:.1f} s", flush=True)
        except Exception as error:  # not exported: the reason goes into the table
            failed[name] = f"{type(error).__name__}: {str(error).splitlines()[0][:120]}"
            print(name, failed[name], flush=True)
        (folder / "not_exported.json").write_text(json.dumps(failed, indent=1))


if __name__ == "__main__":
    main()
