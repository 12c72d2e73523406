"""Cells of a notebook: the loop's cell asks for one trial each time that it is run again, in the same namespace."""

from haltune import Float, Minimize

CELLS = [
    """
import torch
from haltune import Trial
from haltune.callbacks.loop import TrainingLoop
x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)
""",
    """
def validate(net):
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()
""",
    """
if isinstance(trial := study.ask(), Trial):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
    adam = torch.optim.Adam(net.parameters(), trial.config["lr"])
    if trial.checkpoint:
        saved = torch.load(trial.checkpoint)
        net.load_state_dict(saved["net"])
        adam.load_state_dict(saved["adam"])
    write = lambda path: torch.save({"net": net.state_dict(), "adam": adam.state_dict()}, path)
    for epoch in (loop := TrainingLoop(trial, save=write)):
        net.train()
        for rows in torch.randperm(64).split(16):
            adam.zero_grad()
            torch.nn.functional.mse_loss(net(x[rows]), y[rows]).backward()
            adam.step()
        net.eval()
        loop.report(validate(net))
    trial.finish()
""",
]
space = {}


def search(study):
    space["study"] = study
    for cell in CELLS[:2]:
        exec(cell, space)
    space["trial"] = True
    while space["trial"]:
        exec(CELLS[2], space)
        if type(space["trial"]).__name__ != "Trial":
            break


def evaluate(path, config):
    exec("net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1)).eval()", space)
    space["net"].load_state_dict(space["torch"].load(path)["net"])
    return space["validate"](space["net"])


zoo = dict(
    needs=["torch"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=4,
)
