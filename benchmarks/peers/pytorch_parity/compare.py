"""Repeats in PyTorch a run that bench_parity wrote down, and compares.

    compare.py DIR [--threads N]

From the same initial parameters and batches: logits and gradients of the first batch, and the loss of every step of AdamW.
A difference of tensors is L2(a - b) / max(L2(b), 1e-4 L2(all gradients)); of losses |a - b| / b. The exit status is 1 if a
float32 run differs by more than 1e-4 anywhere; for bfloat16 the differences are stated.
"""
import argparse
import sys

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import load_file

parser = argparse.ArgumentParser()
parser.add_argument("dir")
parser.add_argument("--threads", type=int, default=2)
args = parser.parse_args()
torch.set_num_threads(args.threads)

with safe_open(f"{args.dir}/initial.safetensors", "pt") as file:
    options = file.metadata()
initial = load_file(f"{args.dir}/initial.safetensors")
batches = load_file(f"{args.dir}/batches.safetensors")
first = load_file(f"{args.dir}/first.safetensors")
trained = load_file(f"{args.dir}/trained.safetensors")
LAYERS, HEADS, TIED = int(options["layers"]), int(options["heads"]), options["tied"] == "1"
DTYPE = getattr(torch, options["dtype"])
params = {name: value.clone().requires_grad_() for name, value in initial.items()}


def forward(inputs):
    """Logits [batch, length, vocab]; parameters are read in the dtype of the activations, as Tessera does."""
    p = {name: value.to(DTYPE) for name, value in params.items()}
    batch, length = inputs.shape
    d = p["gpt.embedding"].shape[1]

    def norm(x, name):
        return F.layer_norm(x, (d,), p[f"{name}.scale"], p[f"{name}.bias"], 1e-5)

    def heads(x, name, bias=True):
        w = p[f"{name}.w"].reshape(d, d)
        y = x @ w
        if bias:
            y = y + p[f"{name}.b"].reshape(d)
        return y.view(batch, length, HEADS, d // HEADS).transpose(1, 2)

    x = (params["gpt.embedding"][inputs] + params["gpt.position"]).to(DTYPE)
    for i in range(LAYERS):
        b = f"gpt.block{i}"
        y = norm(x, f"{b}.norm1")
        a = f"{b}.attention"
        seen = F.scaled_dot_product_attention(heads(y, f"{a}.query"), heads(y, f"{a}.key", False),
                                              heads(y, f"{a}.value"), is_causal=True)
        seen = seen.transpose(1, 2).reshape(batch, length, d)
        x = x + (seen @ p[f"{a}.out.w"].reshape(d, d) + p[f"{a}.out.b"])
        y = norm(x, f"{b}.norm2")
        m = f"{b}.mlp"
        y = F.gelu(y @ p[f"{m}.up.w"] + p[f"{m}.up.b"], approximate="tanh")
        x = x + (y @ p[f"{m}.down.w"] + p[f"{m}.down.b"])
    x = norm(x, "gpt.norm")
    return x @ (p["gpt.embedding"].T if TIED else p["gpt.head.w"])


def loss_of(logits, targets):
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def difference(a, b, floor=0.0):
    a, b = a.double().flatten(), b.double().flatten()
    return ((a - b).norm() / max(b.norm().item(), floor, 1e-300)).item()


inputs, targets = batches["inputs"].long(), batches["targets"].long()
logits = forward(inputs[0])
loss = loss_of(logits, targets[0])
loss.backward()
grads = {name: first[f"grad.{name}"] for name in params}
whole = torch.stack([g.double().norm() for g in grads.values()]).norm().item()
logit_difference = difference(first["logits"], logits.detach())
gradient_differences = {n: difference(grads[n], params[n].grad, 1e-4 * whole) for n in params}
worst = max(gradient_differences, key=gradient_differences.get)

def decays(p):  # the rule of tessera::adam: not a scale or a bias, which start as constants
    return p.dim() >= 2 and bool((p != p.flatten()[0]).any())


decay = [p for p in params.values() if decays(p)]
rest = [p for p in params.values() if not decays(p)]
optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": float(options["weight_decay"])},
                               {"params": rest, "weight_decay": 0.0}],
                              lr=float(options["lr"]), betas=(0.9, 0.95), eps=1e-8)
losses = []
for step in range(inputs.shape[0]):
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(forward(inputs[step]), targets[step])
    loss.backward()
    if float(options["clip"]) > 0:
        torch.nn.utils.clip_grad_norm_(list(params.values()), float(options["clip"]))
    optimizer.step()
    losses.append(loss.item())
losses = torch.tensor(losses, dtype=torch.float64)
loss_differences = (trained["losses"].double() - losses).abs() / losses
parameter_difference = max(difference(trained[n], p.detach()) for n, p in params.items())

print(f"PyTorch {torch.__version__}, {options['dtype']}, {len(params)} parameters, {len(losses)} steps, "
      f"loss {losses[0]:.6f} to {losses[-1]:.6f}")
print(f"logits                 {logit_difference:.2e}")
print(f"gradients, the worst   {gradient_differences[worst]:.2e}  ({worst})")
print(f"losses, the worst      {loss_differences.max():.2e}  (step {int(loss_differences.argmax()) + 1})")
print(f"losses, the median     {loss_differences.median():.2e}")
print(f"trained parameters     {parameter_difference:.2e}")
bad = max(logit_difference, gradient_differences[worst], loss_differences.max().item()) > 1e-4
sys.exit(1 if DTYPE == torch.float32 and bad else 0)
