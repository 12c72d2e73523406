"""A net whose loop may be spread over ranks, here on one, and the cases in which it resumes exactly."""

import torch
from fits import Case, process

from haltune.callbacks.sharded import ShardedLoop

X = torch.linspace(-1, 1, 24).reshape(8, 3)


def layers():
    return torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))


def value(net):
    net.eval()
    with torch.no_grad():
        found = (net(X) - X.sum(1, keepdim=True)).pow(2).mean().item()
    net.train()
    return found


def train(trial, parts=("schedule", "average"), freezes=False, sgd=False, every_n=1, watch=lambda epoch: None):
    torch.manual_seed(process(trial))
    net = layers()
    rate = trial.config.get("lr", 0.05)
    optimizer = torch.optim.SGD(net.parameters(), rate) if sgd else torch.optim.AdamW(net.parameters(), rate)
    every = {
        "schedule": torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5),
        "average": torch.optim.swa_utils.AveragedModel(net),
    }
    if freezes:
        net[2].requires_grad_(False)
    for epoch in (loop := ShardedLoop(trial, net, optimizer, also={name: every[name] for name in parts})):
        watch(epoch)
        if freezes and epoch == 2:
            net[0].requires_grad_(False)
            net[2].requires_grad_(True)
        (net(X) - X.sum(1, keepdim=True)).pow(2).mean().backward()
        if epoch % every_n == 0:
            optimizer.step()
            optimizer.zero_grad()
        every["average"].update_parameters(net)
        every["schedule"].step()
        loop.report(value(net))
    flags = [float(p.requires_grad) for p in net.parameters()]
    return {"net": net.state_dict(), "average": every["average"].state_dict(), "flags": flags}


def by_two(trial, kind=torch.optim.AdamW, first=1, zeroed=True):
    """Two optimizers, of which one may start later. zeroed: whether its gradients wait for it."""
    torch.manual_seed(process(trial))
    net = layers()
    optimizers = [kind(net[0].parameters(), 0.05), kind(net[2].parameters(), 0.05)]
    for epoch in (loop := ShardedLoop(trial, net, optimizers)):
        (net(X) - X.sum(1, keepdim=True)).pow(2).mean().backward()
        for optimizer in optimizers[: 1 + (epoch >= first)]:
            optimizer.step()
            optimizer.zero_grad()
        if zeroed:
            net.zero_grad()
        loop.report(value(net))
    return {"net": net.state_dict(), "optimizers": [optimizer.state_dict() for optimizer in optimizers]}


def pausing(**options):
    return Case(options, (2, 4), 6)


CASES = {"flags": pausing(freezes=True), "SGD": pausing(sgd=True), "gradients that wait": pausing(every_n=3)}
for kind in (torch.optim.AdamW, torch.optim.SGD):
    for name, options in {"now": {}, "later": {"first": 3}, "waiting": {"first": 3, "zeroed": False}}.items():
        CASES[f"two of {kind.__name__}, one {name}"] = Case({"by": by_two, "kind": kind} | options, (2,), 4)
