"""An ordinary PyTorch script on scikit-learn's digits, which a search can start without changes.

python examples/train_script.py                                             alone, with its defaults
haltune run examples/digits.toml -- python examples/train_script.py      as the trials of a search
"""

import torch
from sklearn.datasets import load_digits
from torch import nn

import haltune

DEFAULTS = {"lr": 0.1, "momentum": 0.9, "width": 32, "dropout": 0.2, "batch": 64}
trial = haltune.current_trial(DEFAULTS, goal=haltune.Maximize("val_acc", bounds=(0, 1)), max_epochs=9)
config = trial.config

images, labels = load_digits(return_X_y=True)
x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, config["width"]), nn.ReLU(), nn.Dropout(config["dropout"]))
model.append(nn.Linear(config["width"], 10))
optimizer = torch.optim.SGD(model.parameters(), config["lr"], config["momentum"])
if trial.checkpoint:  # the trial was paused or interrupted
    state = torch.load(trial.checkpoint, weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])


def train(epoch):
    torch.manual_seed(epoch)  # a resumed trial shuffles and drops out like one that never paused
    model.train()
    for rows in torch.randperm(1200).split(config["batch"]):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def accuracy():
    model.eval()
    with torch.no_grad():
        return (model(x[1200:]).argmax(dim=1) == y[1200:]).float().mean().item()


def save(path):
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


with trial:
    for epoch in trial.epochs():
        train(epoch)
        verdict = trial.report(accuracy())
        trial.save(save)
        print(f"epoch {epoch}: {verdict.action}, {verdict.reason}")
        if verdict.stops:
            break
