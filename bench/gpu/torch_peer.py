"""The models that run.sh times, in PyTorch: what gpt_3d is held against on the same GPU.

    torch_peer.py FAMILY LAYERS HIDDEN HEADS KV_HEADS FFN VOCAB BATCH SEQ MATH [--steps N] [--device cuda]

FAMILY is gpt2 or llama, MATH f32, tf32 or bf16 (autocast, weights and AdamW's state f32, as ours). Prints the median step of the last half.
"""
import argparse
import contextlib
import statistics
import time

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.heads, self.kv_heads, self.dim, bias = o.heads, o.kv_heads, o.hidden // o.heads, o.family == "gpt2"
        self.qkv = nn.Linear(o.hidden, (o.heads + 2 * o.kv_heads) * self.dim, bias=bias)
        self.out = nn.Linear(o.hidden, o.hidden, bias=bias)

    def forward(self, x, turn):
        b, s, _ = x.shape
        q, k, v = self.qkv(x).view(b, s, -1, self.dim).transpose(1, 2).split([self.heads, self.kv_heads, self.kv_heads], 1)
        if turn is not None:
            q, k = rotate(q, turn), rotate(k, turn)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.out(y.transpose(1, 2).reshape(b, s, -1))


def rotate(x, turn):
    cos, sin = turn
    a, b = x.float().chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, o):
        super().__init__()
        self.gated = o.family == "llama"
        self.wide = nn.Linear(o.hidden, o.ffn * (2 if self.gated else 1), bias=not self.gated)
        self.narrow = nn.Linear(o.ffn, o.hidden, bias=not self.gated)

    def forward(self, x):
        if not self.gated:
            return self.narrow(F.gelu(self.wide(x), approximate="tanh"))
        gate, up = self.wide(x).chunk(2, -1)
        return self.narrow(F.silu(gate) * up)


class Model(nn.Module):
    def __init__(self, o):
        super().__init__()
        norm = nn.LayerNorm if o.family == "gpt2" else nn.RMSNorm
        self.embedding = nn.Embedding(o.vocab, o.hidden)
        self.positions = nn.Embedding(o.seq, o.hidden) if o.family == "gpt2" else None
        self.layers = nn.ModuleList(nn.ModuleList([norm(o.hidden), Attention(o), norm(o.hidden), Mlp(o)]) for _ in range(o.layers))
        self.norm = norm(o.hidden)
        self.head = nn.Linear(o.hidden, o.vocab, bias=False)
        if o.family == "gpt2":
            self.head.weight = self.embedding.weight
        half = o.hidden // o.heads // 2
        angle = torch.outer(torch.arange(o.seq), 500000.0 ** (-torch.arange(half) / half))
        self.register_buffer("turn", torch.stack([angle.cos(), angle.sin()]))

    def forward(self, tokens, targets):
        x = self.embedding(tokens)
        turn = self.turn if self.positions is None else None
        if turn is None:
            x = x + self.positions.weight[: tokens.shape[1]]
        for norm1, attention, norm2, mlp in self.layers:
            x = x + attention(norm1(x), turn)
            x = x + mlp(norm2(x))
        return F.cross_entropy(self.head(self.norm(x)).float().flatten(0, 1), targets.flatten())


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family", choices=["gpt2", "llama"])
    for name in ("layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "batch", "seq"):
        parser.add_argument(name, type=int)
    parser.add_argument("math", choices=["f32", "tf32", "bf16"])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    o = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = o.math != "f32"
    model = Model(o).to(o.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(256, (o.batch, o.seq + 1), device=o.device)
    seconds = []
    for _ in range(o.steps):
        begin = time.perf_counter()
        with torch.autocast(o.device, torch.bfloat16) if o.math == "bf16" else contextlib.nullcontext():
            loss = model(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss.item()  # waits for the device, as our step does for the gradient norm
        seconds.append(time.perf_counter() - begin)
    step = statistics.median(seconds[o.steps // 2:])
    parameters = sum(p.numel() for p in model.parameters())
    print(f"PyTorch {torch.__version__}, {o.math}: {step * 1e3:.1f} ms a step, {o.batch * o.seq / step:.0f} tokens/s ({parameters / 1e6:.0f}M parameters)")


if __name__ == "__main__":
    main()
