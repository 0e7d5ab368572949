"""Writes losses.json: what PyTorch's optimizers make of the problem in ../torch.rs.

Usage: python losses.py > losses.json
"""

import json

import torch

N, DIM, STEPS = 64, 9, 100
X = torch.tensor([[((7 * i + 13 * j) % 17) / 8 - 1 for j in range(DIM)] for i in range(N)])
Y = torch.tensor([float(5 * i % 11 > 5) for i in range(N)])

OPTIMIZERS = {
    "sgd": lambda w: torch.optim.SGD([w], lr=0.5),
    "momentum": lambda w: torch.optim.SGD([w], lr=0.1, momentum=0.9),
    "nesterov": lambda w: torch.optim.SGD([w], lr=0.1, momentum=0.9, nesterov=True),
    "adagrad": lambda w: torch.optim.Adagrad([w], lr=0.1, eps=1e-6),
    "adam": lambda w: torch.optim.Adam([w], lr=0.01),
    "adamw": lambda w: torch.optim.AdamW([w], lr=0.01, weight_decay=0.01),
    "adadelta": lambda w: torch.optim.Adadelta([w], lr=1.0, rho=0.95, eps=1e-6),
}


def losses(make):
    w = torch.tensor([0.3 * (-1) ** j for j in range(DIM)], requires_grad=True)
    optimizer = make(w)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.binary_cross_entropy_with_logits(X @ w, Y)
        loss.backward()
        optimizer.step()
        yield round(loss.item(), 8)


print("{")
rows = [f'"{name}": {json.dumps(list(losses(make)))}' for name, make in OPTIMIZERS.items()]
print(",\n".join(rows))
print("}")
