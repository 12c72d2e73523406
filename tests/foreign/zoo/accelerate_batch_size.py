"""Accelerate's find_executable_batch_size around a loop: it calls again, with a smaller batch, after a shortage."""

import torch
from accelerate import Accelerator
from accelerate.utils import find_executable_batch_size, set_seed

from haltune import Float, Minimize
from haltune.callbacks.accelerate import AcceleratedLoop

x = torch.rand(96, 4, generator=torch.Generator().manual_seed(0))
y = x.prod(1, keepdim=True)
rows = torch.utils.data.TensorDataset(x[:64], y[:64])


def search(study):
    for trial in study:
        with trial:

            @find_executable_batch_size(starting_batch_size=32)
            def train(batch_size):
                accelerator = Accelerator(cpu=True)
                accelerator.free_memory()
                set_seed(1)
                net = torch.nn.Linear(4, 1)
                adam = torch.optim.AdamW(net.parameters(), trial.config["lr"])
                loader = torch.utils.data.DataLoader(rows, batch_size, shuffle=True)
                net, adam, loader = accelerator.prepare(net, adam, loader)
                if batch_size > 16:
                    raise RuntimeError("CUDA out of memory.")
                for epoch in (loop := AcceleratedLoop(trial, accelerator)):
                    for inputs, targets in loader:
                        accelerator.backward(torch.nn.functional.mse_loss(net(inputs), targets))
                        adam.step()
                        adam.zero_grad()
                    loop.report(validate(accelerator.unwrap_model(net)))

            train()


def validate(net):
    with torch.no_grad():
        return torch.nn.functional.mse_loss(net(x[64:]), y[64:]).item()


def evaluate(path, config):
    from safetensors.torch import load_file

    net = torch.nn.Linear(4, 1)
    net.load_state_dict(load_file(f"{path}/model.safetensors"))
    return validate(net)


zoo = dict(
    needs=["torch", "accelerate"],
    slow=True,
    space={"lr": Float(0.001, 1.0, log=True)},
    goal=Minimize("val_loss"),
    max_epochs=4,
    trials=[{"lr": 0.05}, {"lr": 0.2}],
    pauses=[1, 3],
    updates=5,
)
