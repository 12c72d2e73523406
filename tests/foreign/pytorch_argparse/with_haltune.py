"""The shape of PyTorch's examples: argparse, a train and a test function, a loop over epochs."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, TensorDataset

from haltune import Float, Study


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(16, 32)
        self.fc2 = nn.Linear(32, 4)

    def forward(self, x):
        return F.log_softmax(self.fc2(F.relu(self.fc1(x))), dim=1)


def data(n, seed):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 16, generator=generator)
    return TensorDataset(x, 2 * (x[:, 0] > 0).long() + (x[:, 1] > 0).long())


def train(args, model, device, train_loader, optimizer, epoch):
    model.train()
    for batch_idx, (data, target) in enumerate(train_loader):
        data, target = data.to(device), target.to(device)
        optimizer.zero_grad()
        loss = F.nll_loss(model(data), target)
        loss.backward()
        optimizer.step()
        if batch_idx % args.log_interval == 0:
            print(f"Train Epoch: {epoch} Loss: {loss.item():.6f}")


def test(model, device, test_loader):
    model.eval()
    correct = 0
    with torch.no_grad():
        for data, target in test_loader:
            correct += (model(data.to(device)).argmax(dim=1) == target.to(device)).sum().item()
    print(f"Test set: Accuracy: {correct}/{len(test_loader.dataset)}")
    return correct / len(test_loader.dataset)


def main(trial):
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=9)
    parser.add_argument("--lr", type=float, default=1.0)
    parser.add_argument("--gamma", type=float, default=0.7)
    parser.add_argument("--log-interval", type=int, default=10)
    parser.add_argument("--save-model", action="store_true")
    args = parser.parse_args()
    vars(args).update(trial.config)
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_loader = DataLoader(data(512, 0), batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(data(256, 1), batch_size=256)

    model = Net().to(device)
    optimizer = optim.Adadelta(model.parameters(), lr=args.lr)
    scheduler = StepLR(optimizer, step_size=1, gamma=args.gamma)
    for epoch in trial.epochs():
        train(args, model, device, train_loader, optimizer, epoch)
        accuracy = test(model, device, test_loader)
        scheduler.step()
        if trial.report(accuracy).stops:
            break

    if args.save_model:
        torch.save(model.state_dict(), "mnist_cnn.pt")


if __name__ == "__main__":
    space = {"lr": Float(1e-3, 10.0, log=True), "gamma": Float(0.1, 1.0)}
    study = Study(space, "accuracy", "search.db", max_epochs=9, budget="8 trials")
    study.optimize(main)
    print(study.best)
