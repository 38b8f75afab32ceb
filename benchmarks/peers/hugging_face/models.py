#!/usr/bin/env python3
"""Tiny random models of each family, made by Hugging Face transformers, and what transformers computes with them.

    models.py record tests/models [NAME...]   writes the fixtures that the tests read
    models.py beams tests/models              adds what transformers finds by beam search with some of them
    models.py tiny data                       writes the models of the manual's examples, which read bytes
    models.py compare TESSERA tests/models    lets the program train each model for a step with learning rate 0 and
                                              export it, and opens the result in transformers: the same bytes and logits

Needs torch and transformers 5 (pip install torch transformers). Weights are scaled so that logits have a deviation of 1 or
more and attention is far from uniform, and sequences are longer than windows and original contexts: with the weights that
transformers draws, a wrong base of the rotary positions passes any tolerance.
"""

import gzip
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import numpy
import safetensors.torch
import torch
import transformers
from transformers import (AutoConfig, AutoModelForCausalLM, AutoModelForImageClassification, AutoModelForMaskedLM,
                          AutoModelForSeq2SeqLM, BertConfig, DeepseekV3Config, Gemma2Config, Gemma3TextConfig, GPT2Config, LlamaConfig,
                          MistralConfig, MixtralConfig, Qwen2Config, Qwen3Config, Qwen3MoeConfig, T5Config, ViTConfig)

BATCH, LENGTH, TARGET_LENGTH, VOCAB = 2, 40, 24, 96
SIZES = dict(vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=64, bos_token_id=None, eos_token_id=None,
             attn_implementation="eager")
PIXELS = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]}  # of preprocessor_config.json


def llama3(theta=5000.0):
    return {"rope_type": "llama3", "rope_theta": theta, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 16}


def models():
    """Name -> (configuration, dtype of the files, bytes of a shard)."""
    yield "llama", LlamaConfig(**SIZES, rope_parameters=llama3()), torch.float32, "50KB"
    yield "llama-old", LlamaConfig(**SIZES, tie_word_embeddings=True, attention_bias=True, mlp_bias=True, rope_parameters={
        "rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5}), torch.bfloat16, "1GB"
    yield "mistral", MistralConfig(**SIZES, sliding_window=7), torch.bfloat16, "1GB"
    yield "qwen2", Qwen2Config(**SIZES, tie_word_embeddings=True, rope_parameters={
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16,
        "beta_fast": 4.0, "beta_slow": 0.25}), torch.bfloat16, "1GB"
    yield "qwen3", Qwen3Config(**SIZES, head_dim=12, use_sliding_window=True, sliding_window=9, max_window_layers=1,
                               rope_parameters={"rope_type": "default", "rope_theta": 3000.0}), torch.bfloat16, "1GB"
    yield "gpt2", GPT2Config(vocab_size=VOCAB, n_positions=64, n_embd=32, n_layer=2, n_head=4, bos_token_id=None,
                             eos_token_id=None, attn_implementation="eager"), torch.float16, "1GB"
    gemma = dict(SIZES, head_dim=12, query_pre_attn_scalar=20, sliding_window=6, pad_token_id=None)
    yield "gemma2", Gemma2Config(**gemma, final_logit_softcapping=9.0, attn_logit_softcapping=3.0, rope_parameters={
        "rope_type": "default", "rope_theta": 3000.0}), torch.bfloat16, "1GB"
    gemma["num_hidden_layers"] = 3
    yield "gemma3", Gemma3TextConfig(**gemma, layer_types=["sliding_attention", "full_attention", "sliding_attention"],
                                     rope_parameters={
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "linear", "rope_theta": 5000.0, "factor": 2.0}}), torch.bfloat16, "1GB"


    yield "mixtral", MixtralConfig(**SIZES, num_local_experts=3, num_experts_per_tok=2, rope_parameters={
        "rope_type": "default", "rope_theta": 3000.0}), torch.bfloat16, "1GB"
    yield "qwen3-moe", Qwen3MoeConfig(**SIZES, head_dim=12, moe_intermediate_size=20, num_experts=5, num_experts_per_tok=3,
                                      rope_parameters={"rope_type": "default", "rope_theta": 3000.0}), torch.bfloat16, "1GB"


    t5 = dict(vocab_size=VOCAB, d_model=32, d_kv=12, d_ff=48, num_layers=2, num_heads=4, relative_attention_num_buckets=8,
              relative_attention_max_distance=20, decoder_start_token_id=0, attn_implementation="eager")
    yield "t5", T5Config(**t5, num_decoder_layers=3, feed_forward_proj="gated-gelu", tie_word_embeddings=False), torch.bfloat16, "1GB"
    yield "t5-old", T5Config(**t5, feed_forward_proj="relu"), torch.bfloat16, "1GB"
    yield "bert", BertConfig(vocab_size=VOCAB, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48,
                             max_position_embeddings=64, attn_implementation="eager"), torch.bfloat16, "1GB"
    latent = dict(SIZES, num_key_value_heads=4, num_hidden_layers=3, first_k_dense_replace=1, moe_intermediate_size=12,
                  n_routed_experts=6, n_group=3, topk_group=2, num_experts_per_tok=3, n_shared_experts=2, kv_lora_rank=16,
                  qk_nope_head_dim=6, qk_rope_head_dim=8, v_head_dim=10, num_nextn_predict_layers=0)
    yield "deepseek-v3", DeepseekV3Config(**latent, q_lora_rank=12, rope_parameters={
        "rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 4.0,
        "beta_slow": 0.25, "mscale": 1.0, "mscale_all_dim": 0.6}), torch.bfloat16, "1GB"
    yield "deepseek-v3-plain", DeepseekV3Config(**dict(latent, num_hidden_layers=2), q_lora_rank=None, norm_topk_prob=False,
                                                rope_interleave=False, rope_parameters={
        "rope_type": "default", "rope_theta": 100.0}), torch.bfloat16, "1GB"
    yield "vit", ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=12, patch_size=4,
                           num_labels=5, attn_implementation="eager"), torch.bfloat16, "1GB"


def class_of(config):
    if config.model_type == "t5":
        return AutoModelForSeq2SeqLM
    if config.model_type == "vit":
        return AutoModelForImageClassification
    return AutoModelForMaskedLM if config.model_type == "bert" else AutoModelForCausalLM


def scale(model, dtype):
    """Draws weights of the size described above, each a number of `dtype`."""
    for name, p in model.named_parameters():
        if p.dim() == 2:
            fan = p.shape[0] if "c_" in name else p.shape[1]
            gain = 2.0 if any(k in name for k in ("q_proj", "k_proj", "q_b_proj", "kv_b_proj", "c_attn", ".query.", ".key.")) else 1.2
            if re.search(r"\.[qk]\.weight", name):  # T5 does not scale logits by d_kv^-0.5
                gain = 1.0
            is_embedding = name.startswith("shared") or any(k in name for k in ("wte", "wpe", "embed", "relative_attention_bias"))
            size = 1.5 if name.startswith("shared") else 1.0 if is_embedding else gain / fan**0.5
            p.data = torch.randn(p.shape) * size
        elif "cls_token" in name or "position_embeddings" in name:
            p.data = torch.randn(p.shape)
        elif p.dim() == 4:  # a convolution
            p.data = torch.randn(p.shape) * (1.2 / p[0].numel()**0.5)
        elif p.dim() == 3:  # of all experts
            p.data = torch.randn(p.shape) * (1.2 / p.shape[2]**0.5)
        elif "norm" in name.lower() or "ln_" in name:
            p.data = p.data + 0.3 * torch.randn(p.shape)
        else:
            p.data = 0.5 * torch.randn(p.shape)
        p.data = p.data.to(dtype).float()
    for name, b in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            b.data = (0.3 * torch.randn(b.shape)).to(dtype).float()
    model.tie_weights()


def old_keys(path):
    """config.json as transformers 4 wrote it."""
    config = json.loads(path.read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"] = rope.pop("rope_theta")
    config["rope_scaling"] = {"type": rope.pop("rope_type"), **rope}
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.44.0"
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")


def examples(config):
    """Inputs of the model, by the names that Tessera gives them."""
    def tokens(length):
        return torch.randint(0, VOCAB, (BATCH, length))
    if config.model_type == "vit":
        side = config.image_size
        images = torch.randint(0, 256, (BATCH, config.num_channels, side, side)) / 255
        return {"images": images, "labels": torch.randint(0, config.num_labels, (BATCH,))}
    if config.model_type == "t5":
        return {"inputs": tokens(LENGTH), "decoder_inputs": tokens(TARGET_LENGTH), "targets": tokens(TARGET_LENGTH)}
    made = {"inputs": tokens(LENGTH), "targets": tokens(LENGTH)}
    if config.model_type == "bert":
        made["inputs"].clamp_(min=1)  # torch has no gradient for the embedding of the padding
        made["weights"] = (torch.rand(BATCH, LENGTH) < 0.3).float()
    return made


def run(model, fed, **more):
    if "images" in fed:
        mean, deviation = (torch.tensor(PIXELS[k]).reshape(1, -1, 1, 1) for k in ("image_mean", "image_std"))
        return model(pixel_values=(fed["images"] - mean) / deviation, **more)
    if "decoder_inputs" in fed:
        more["decoder_input_ids"] = fed["decoder_inputs"].long()
    return model(fed["inputs"].long(), **more)


def outputs(model, fed):
    model.zero_grad()
    logits = run(model, fed).logits
    if "labels" in fed:
        loss = torch.nn.functional.cross_entropy(logits, fed["labels"].long())
        loss.backward()
        return logits.detach(), loss.detach()
    losses = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCAB), fed["targets"].reshape(-1), reduction="none")
    weights = fed.get("weights", torch.ones_like(fed["targets"])).reshape(-1)
    loss = (losses * weights).sum() / weights.sum()
    loss.backward()
    return logits.detach(), loss.detach()


def is_of_later_layer(key, config):
    if config.model_type == "deepseek_v3":  # the second layer is the first with experts
        return ".2." in key
    return re.search(r"\.block\.[1-9]", key) if ".block." in key and ".layer." in key else ".1." in key


def on_disk(key, tensor):
    """The tensors of the files that one in memory is: transformers 5 joins those of the experts."""
    if key.startswith("vit.layers."):  # transformers 5 has other names in memory
        for ours, theirs in (("vit.layers.", "vit.encoder.layer."), ("attention.q_proj", "attention.attention.query"),
                             ("attention.k_proj", "attention.attention.key"), ("attention.v_proj", "attention.attention.value"),
                             ("attention.o_proj", "attention.output.dense"), ("mlp.fc1", "intermediate.dense"),
                             ("mlp.fc2", "output.dense")):
            key = key.replace(ours, theirs)
        return [(key, tensor)]
    mixtral = tensor.shape[0] == 3
    if key.endswith(".mlp.gate.weight") and mixtral:
        return [(key.replace(".mlp.", ".block_sparse_moe."), tensor)]
    if not key.endswith(("experts.gate_up_proj", "experts.down_proj")):
        return [(key, tensor)]
    layer = key[:key.index(".mlp.")]
    scope = layer + (".block_sparse_moe" if mixtral else ".mlp")
    gate, up, down = ("w1", "w3", "w2") if mixtral else ("gate_proj", "up_proj", "down_proj")
    parts = [(down, tensor)] if key.endswith("down_proj") else list(zip((gate, up), tensor.chunk(2, dim=1)))
    return [(f"{scope}.experts.{e}.{name}.weight", part[e]) for name, part in parts for e in range(len(part))]


def record(folder, wanted):
    for seed, (name, config, dtype, shard) in enumerate(models()):
        if wanted and name not in wanted:
            continue
        torch.manual_seed(seed)
        model = class_of(config).from_config(config).float().eval()
        if name == "t5":  # transformers 5 ties this head unless its values differ
            model.lm_head.weight = torch.nn.Parameter(torch.empty(VOCAB, 32))
        scale(model, dtype)
        if name == "t5":
            model.lm_head.weight = torch.nn.Parameter((1.2 / 32**0.5 * torch.randn(VOCAB, 32)).to(dtype).float())
        fed = examples(config)
        logits, loss = outputs(model, fed)
        seen = run(model, fed, output_attentions=True)
        attention = seen.encoder_attentions + seen.decoder_attentions if name.startswith("t5") else seen.attentions
        sharpness = max(float(a.detach().max(-1).values.mean()) for a in attention)
        print(f"{name}: loss {float(loss):.4f}, logits deviate by {float(logits.std()):.3f}, mean largest weight of a query "
              f"{sharpness:.2f}")
        assert float(logits.detach().std()) >= 1 and sharpness > 0.3, name
        expected = {k: v if k in ("weights", "images") else v.int() for k, v in fed.items()} | {"logits": logits, "loss": loss.reshape(1)}
        for key, p in model.named_parameters():
            # That of BERT's key biases is 0.
            if not is_of_later_layer(key, config) and p.grad is not None and not key.endswith(("self.key.bias", "k_proj.bias")[:2 if name == "vit" else 1]):
                expected |= {"grad." + k: g.clone() for k, g in on_disk(key, p.grad)}  # to() below rounds gradients, too
        out = folder / name
        out.mkdir(parents=True, exist_ok=True)
        for old in out.iterdir():
            old.unlink()
        model.to(dtype).save_pretrained(out, max_shard_size=shard)
        (out / "generation_config.json").unlink(missing_ok=True)
        if name == "vit":
            (out / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": "ViTImageProcessor", **PIXELS}) + "\n")
        if name == "llama-old":
            old_keys(out / "config.json")
        if name == "t5":  # as files of T5 1.1 have it
            config = json.loads((out / "config.json").read_text())
            config["tie_word_embeddings"] = False
            for key in ("scale_decoder_outputs", "dense_act_fn", "is_gated_act"):
                del config[key]
            (out / "config.json").write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
        safetensors.torch.save_file({k: v.contiguous() for k, v in expected.items()}, out / "expected.st")


def beams(folder):
    """100 prompts each, in turn with four ways of searching."""
    ways = [dict(length_penalty=1.0, early_stopping=False, ends=[1]),
            dict(length_penalty=0.0, early_stopping=True, ends=[1, 7, 20, 33]),
            dict(length_penalty=2.0, early_stopping=False, ends=[1, 7, 20, 33, 41, 50]),
            dict(length_penalty=-1.0, early_stopping=True, ends=[1, 7, 20, 33])]
    for name in ("t5", "llama"):
        torch.manual_seed(0)
        model = class_of(AutoConfig.from_pretrained(folder / name)).from_pretrained(folder / name, dtype=torch.float32).eval()
        cases = []
        for i in range(100):
            way = ways[i % len(ways)]
            prompt = torch.randint(2, VOCAB, (1, 2 + i % 9))
            # Without a cache: that of transformers 5 has as many layers as the encoder, and this decoder has more.
            found = model.generate(prompt, attention_mask=torch.ones_like(prompt), num_beams=4, num_return_sequences=2,
                                   do_sample=False, max_new_tokens=10, use_cache=False, pad_token_id=0, eos_token_id=way["ends"],
                                   length_penalty=way["length_penalty"], early_stopping=way["early_stopping"],
                                   return_dict_in_generate=True, output_scores=True)
            first, texts = 1 if name == "t5" else prompt.shape[1], []
            for text in found.sequences[:, first:].tolist():
                ends = [k for k, token in enumerate(text) if token in way["ends"]]
                texts.append(text[:ends[0] + 1] if ends else text)
            cases.append(dict(way, prompt=prompt[0].tolist(), texts=texts, scores=[round(s, 5) for s in found.sequences_scores.tolist()]))
        lines = ",\n".join(json.dumps(case) for case in cases)
        (folder / name / "beams.json").write_text(f"[\n{lines}\n]\n")
        ended = sum(len(text) < 10 for case in cases for text in case["texts"])
        print(f"{name}: {ended} of 200 texts end before 10 tokens")


def tiny(folder):
    torch.manual_seed(0)
    config = LlamaConfig(**dict(SIZES, vocab_size=256, intermediate_size=96, max_position_embeddings=512),
                         tie_word_embeddings=True, rope_parameters={"rope_type": "default", "rope_theta": 10000.0})
    t5 = T5Config(vocab_size=256, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, feed_forward_proj="gated-gelu",
                  decoder_start_token_id=0)
    for name, each in {"tiny-llama": config, "tiny-t5": t5}.items():
        class_of(each).from_config(each).to(torch.bfloat16).save_pretrained(folder / name)
        (folder / name / "generation_config.json").unlink(missing_ok=True)


def write_images(folder, config):
    """A data set of random images, in IDX files."""
    folder.mkdir()
    shape = (16, config["num_channels"], config["image_size"], config["image_size"])
    for part in ("train", "test"):
        pixels, labels = numpy.random.randint(0, 256, shape), numpy.random.randint(0, 5, shape[:1])
        for file, array in ((f"{part}-images-idx4-ubyte.gz", pixels), (f"{part}-labels-idx1-ubyte.gz", labels)):
            header = bytes([0, 0, 8, array.ndim]) + numpy.array(array.shape, ">u4").tobytes()
            (folder / file).write_bytes(gzip.compress(header + array.astype(numpy.uint8).tobytes()))


def tensors_of(folder):
    found = {}
    for path in sorted(folder.glob("*.safetensors")):
        found |= safetensors.torch.load_file(path)
    return found


def compare(tessera, folder):
    failed = False
    for case in sorted(p.parent for p in folder.glob("*/expected.st")):
        with tempfile.TemporaryDirectory() as work:
            work = pathlib.Path(work)
            (work / "text").write_bytes(bytes(range(VOCAB - 8)) * 40)
            special = {"t5": [f"first_sentinel={VOCAB - 1}"], "bert": [f"mask_token={VOCAB - 1}"]}.get(case.name.split("-")[0], [])
            data, length = work / "text", ["length=16"]
            if case.name == "vit":
                data, length = work / "images", []
                write_images(data, json.loads((case / "config.json").read_text()))
            train = [tessera, "train", case, "--data", data, "--steps", "1", "--batch", "8", "--checkpoint", work / "run",
                     "--set", "lr=0", *length, *special]
            subprocess.run(train, check=True, stdout=subprocess.DEVNULL)
            subprocess.run([tessera, "export", "--checkpoint", work / "run", "--like", case, work / "out"], check=True,
                           stdout=subprocess.DEVNULL)
            before, after = tensors_of(case), tensors_of(work / "out")
            same = before.keys() == after.keys() and all(
                torch.equal(before[k].view(torch.uint8), after[k].view(torch.uint8)) for k in before)
            expected = safetensors.torch.load_file(case / "expected.st")
            kind = class_of(AutoConfig.from_pretrained(work / "out"))
            model = kind.from_pretrained(work / "out", dtype=torch.float32, attn_implementation="eager")
            logits = run(model, expected).logits.detach()
            worst = float((logits - expected["logits"]).abs().max() / expected["logits"].std())
            good = same and worst < 1e-4
            failed |= not good
            print(f"{case.name}: {len(after)} tensors, bytes {'equal' if same else 'DIFFER'}, logits in transformers "
                  f"{transformers.__version__} differ by {worst:.1e} of their deviation: {'ok' if good else 'FAILED'}")
    return 1 if failed else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    if len(sys.argv) >= 3 and sys.argv[1] == "record":
        record(pathlib.Path(sys.argv[2]), sys.argv[3:])
    elif len(sys.argv) == 3 and sys.argv[1] == "beams":
        beams(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) == 3 and sys.argv[1] == "tiny":
        tiny(pathlib.Path(sys.argv[2]))
    elif len(sys.argv) == 4 and sys.argv[1] == "compare":
        sys.exit(compare(pathlib.Path(sys.argv[2]).resolve(), pathlib.Path(sys.argv[3])))
    else:
        sys.exit(__doc__)
