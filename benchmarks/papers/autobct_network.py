"""Section 4.2 of the AutoBCT paper on other data: learning rate and batch size of a small network.

    python benchmarks/papers/autobct_network.py --controls both --data FOLDER [--method otf] [--runs 40] [--keep FILE]
        [--svg]
    python benchmarks/papers/autobct_network.py --controls both --data FOLDER --random 60 [--runs 10]
    python benchmarks/papers/autobct_network.py --table-6

A network of three hidden layers, which fails at the smallest and at the largest rates, two epochs over 5,000 digits of
MNIST, validated on 2,000 others, where the paper has a convolutional one on images of tissue. `--controls batch`: the
batch, 10 to 200, at the learning rate 0.0007 (table 4, figure 5). `rate`: the learning rate, 1e-5 to 0.1, at the batch
66 (table 5, figure 6). `both` (tables 6 and 7, figure 7). As there: the priors D.2 to D.4, gamma 0.16, the median of
five networks for a score, and a map of the value, in two coordinates with epsilon 0.02. Accuracy 0.1 to 0.95 is score
0 to 1. Costs are the processor's seconds of the five, in units by which a training of batch 66 costs 0.357, as in table
5.

--method otf is the on-the-fly version with N = 2 (table 8, in both controls): no map, the value of at most two more
trainings, in closed form where the paper has nested Monte Carlo.

--table-6 computes expected scores, and the value of three trainings without a map, on the trainings that the paper's
table 6 prints.

--random compares AutoBCT's defaults with random trainings. AutoBCT gets only a prior that larger batches are cheaper
and that the learning rate costs nothing. Goal: it stops by itself, within 90% of the best accuracy of 60 random
trainings, at a fifth of their cost. The folder, or HALTUNE_DATA, holds mnist_10k.npz: `images` uint8 (10000, 28, 28)
and `labels` (10000,).
"""

import os

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import time
from itertools import pairwise

import numpy as np
import torch
from autobct_runs import after, averaged, belief, grid, search, surface, told
from command_line import command_line, data_file
from drawn import Sheet, write
from kept import kept

from haltune import Float, Int, Maximize, Problem, Space, Study
from haltune.policies import AutoBCT
from haltune.policies.autobct.prior import preset, sampled
from haltune.policies.autobct.value import Effort, ahead, chosen, grid_belief, nodes, q2, values
from haltune.policies.autobct.value import grid as square

RATE, BATCH = Float(1e-5, 0.1, log=True), Int(10, 200)
SPACES = {"batch": {"batch": BATCH}, "rate": {"lr": RATE}, "both": {"lr": RATE, "batch": BATCH}}
PRIORS = {"batch": "D.2", "rate": "D.3", "both": "D.4"}
FIXED = {"lr": 0.0007, "batch": 66}
TRAIN, VALIDATE, REPEATS = 5000, 2000, 5
ENDS = (0.1, 0.95)  # accuracies that count 0 and 1
COST = 0.357  # of a training of batch 66
BEGINS = {"batch": (1.0,), "rate": (1.0,), "both": (0.47, 0.36)}  # where the paper's searches started
TABLE_6 = [  # score, cost, u1, u2
    (0.639, 0.166, 0.47, 0.36), (0.16, 0.18, 1, 0.44), (0.148, 0.186, 0, 0.44), (0.849, 0.198, 0.46, 0.51),
    (0.577, 0.109, 0.5, 0.89), (0.373, 0.154, 0.24, 0.71), (0.502, 0.155, 0.71, 0.71), (0.711, 0.135, 0.63, 1),
    (0.953, 0.439, 0.5, 0.15),
]  # fmt: skip
EFFORT = Effort(score_nodes=5, cost_nodes=3, outer=9, best=6)  # of the value of three trainings


def load(path):
    with np.load(path, allow_pickle=False) as file:
        x = torch.tensor(file["images"].reshape(-1, 784) / 255.0, dtype=torch.float32)
        y = torch.tensor(file["labels"].astype(np.int64))
    return (x[:TRAIN], y[:TRAIN]), (x[TRAIN : TRAIN + VALIDATE], y[TRAIN : TRAIN + VALIDATE])


def train(config, seed, training, unseen):
    """Accuracy after two epochs, and the processor's seconds."""
    torch.manual_seed(seed)
    sizes, layers = (784, 64, 64, 64), []
    for ins, outs in pairwise(sizes):
        layers += [torch.nn.Linear(ins, outs), torch.nn.ReLU()]
    net = torch.nn.Sequential(*layers, torch.nn.Linear(sizes[-1], 10))
    optimiser = torch.optim.Adam(net.parameters(), config["lr"])
    began = time.process_time()
    for _ in range(2):
        for rows in torch.randperm(TRAIN).split(config["batch"]):
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(net(training[0][rows]), training[1][rows]).backward()
            optimiser.step()
    with torch.no_grad():
        right = (net(unseen[0]).argmax(dim=1) == unseen[1]).float().mean().item()
    return right, time.process_time() - began


def problem(controls):
    return Problem(Space(SPACES[controls]), Maximize("accuracy", (0, 1)), max_epochs=1)


def paper(controls, method, prior, unit):
    """AutoBCT as the paper runs it; `unit`: what five trainings of cost 1 take."""
    dim = len(SPACES[controls])
    ahead = {"depth": 2} if method == "otf" else {"value_map": f"{dim}d", "epsilon": 0.02 if dim == 2 else 0.0}
    return AutoBCT(prior=prior, worst=ENDS[0], best=ENDS[1], seconds=(0.0, unit), repeats=REPEATS, **ahead)


def experiment(controls, options, data):
    """Tables and figure of one choice of controls."""
    seconds = [train(FIXED, seed, *data)[1] for seed in range(REPEATS)]
    unit, prior = sum(seconds) / COST, preset(PRIORS[controls])
    policy = paper(controls, options.method, prior, unit)
    print(f"five trainings of batch 66 take {sum(seconds):.2f} s: cost {COST}")
    found = kept(
        options,
        options.runs,
        lambda seed: search(problem(controls), policy, seed, lambda c, s: train(FIXED | c, s, *data)),
    )
    print(f"\nsearch 0\n{told(found[0]['rows'])}\nthe last sentence: {found[0]['reason']}\n")
    print(averaged([of["rows"] for of in found]))
    print(beginnings(prior, [found[0]["rows"][0][4:], BEGINS[controls]]))
    if options.svg:
        (two if controls == "both" else one)(controls, prior, found[0]["rows"])


def beginnings(prior, places):
    """Return the value of a search by its start, in closed form, two trainings ahead on 11 controls a side."""
    side = np.linspace(0.0, 1.0, 11)
    dim = len(places[0])
    points = np.stack(np.meshgrid(*[side] * dim, indexing="ij"), axis=-1).reshape(-1, dim)
    worth = q2(grid_belief(prior, prior.on(np.vstack([points, places])), AutoBCT.gamma))[:, 0]
    found = ", ".join(
        f"at {np.round(u, 2).tolist()} {w:.3f}" for u, w in zip(places, worth[len(points) :], strict=True)
    )
    return f"two trainings ahead, a search is worth, begun {found} (here; in the paper); at best {worth.max():.3f}"


def table_6():
    """Print what the paper's table 6 has, without its map."""
    prior = preset("D.4")
    print("score  expected score  value of three trainings")
    for h, t, *u in TABLE_6:
        phi = prior.on(np.array([u]))[0]
        prior = prior.observe(phi, h, t)
        state = grid_belief(prior, prior.on(square(2)), AutoBCT.gamma)
        two = values(state, 2)
        three = ahead(state, chosen(two, EFFORT), lambda then: then.two(*nodes(3)), EFFORT)
        print(f"{h:.3f} {phi @ prior.score.mean:15.3f} {max(three.max(), two.max()):25.3f}")


def one(controls, before, rows):
    """Figures 5 and 6: the prior and what one search believed at its end."""
    control = "u, batch 10 to 200" if controls == "batch" else "u, learning rate 1e-5 to 0.1"
    sheet = Sheet(
        f"autobct_network_{controls}",
        f"Score and cost over {control}: the prior, and the posterior after {len(rows)} trainings.",
        width=760, height=340 if controls == "batch" else 620,
    )  # fmt: skip
    ends = ((-0.5, 1.5), (-0.5, 2.5 if controls == "batch" else 1.5))
    stages = {"after the last": (after(before, rows), rows)}
    if controls == "rate":
        stages = {"before": (before, []), **stages}
    made = grid(sheet, 2, len(stages), (0, 1), [ends[0]] * len(stages))
    for panels, (when, (prior, seen)) in zip(made, stages.items(), strict=True):
        panels[1].y = ends[1]
        belief(panels, prior, seen, [f"Score, {when}", f"Cost, {when}"], control)
    write(sheet)


def two(controls, before, rows):
    """Figure 7: means of score and cost before and after one search."""
    u = (np.arange(11) + 0.5) / 11
    points = np.stack(np.meshgrid(u, u, indexing="ij"), axis=-1).reshape(-1, 2)
    stages = {"before": (before, []), f"after {len(rows)}": (after(before, rows), rows)}
    sheet = Sheet(
        f"autobct_network_{controls}",
        "Means of score and cost over learning rate and batch, before and after a search: the darker the higher.",
        width=760, height=300,
    )  # fmt: skip
    panels = grid(sheet, 4, 1, (0, 1), [(0, 1)])[0]
    for i, (what, ends) in enumerate((("Score", (0.0, 1.0)), ("Cost", (0.0, 5.0)))):
        for j, (when, (prior, seen)) in enumerate(stages.items()):
            of = prior.score if what == "Score" else prior.cost
            values = (prior.on(points) @ of.mean).reshape(11, 11)
            surface(panels[2 * i + j], values, ends, f"{what}, {when}", seen)
            print(f"{what}, {when}: mean from {values.min():.2f} to {values.max():.2f}")
    write(sheet)


def by_itself(seed, *data):
    """Trainings, the last accuracy, the best, the cost, and why it ended, of AutoBCT as it comes."""
    prior = sampled(2, ["flat", "decreasing"])
    study = Study(problem("both"), AutoBCT(prior=prior), seed=seed, verbose=0)
    for trial in study:
        with trial:
            accuracy, seconds = train(trial.config, 1000 * seed + trial.id, *data)
            trial.report(accuracy, seconds=seconds, cost=seconds)
    cost = sum(float(t.seconds.sum()) for t in study.trials)
    return len(study.trials), float(study.trials[-1].values[-1]), study.best.value, cost, study.ask().reason


def random(seed, count, *data):
    """The best accuracy of so many random trainings, and what they cost together."""
    best, cost = 0.0, 0.0
    configs = Space(SPACES["both"]).sample(count, np.random.default_rng(seed))
    for i, config in enumerate(configs):
        accuracy, seconds = train(config, 10_000 + 1000 * seed + i, *data)
        best, cost = max(best, accuracy), cost + seconds
    return best, cost


def against_random(options, data):
    print("seed   n   last   best  cost s   random  cost s    share   cost")
    rows = []
    for seed in range(options.runs):
        n, last, best, cost, reason = by_itself(seed, *data)
        top, spent = random(seed, options.random, *data)
        rows.append((last / top, cost / spent, best / top))
        print(
            f"{seed:4d} {n:3d} {last:6.3f} {best:6.3f} {cost:7.2f}   {top:6.3f} {spent:7.2f}   {last / top:6.3f} "
            f"{cost / spent:6.3f}",
            flush=True,
        )
    print("the last sentence:", reason)
    share, price, best = np.array(rows).T
    print(
        f"the configuration kept reaches {share.mean():.3f} of the best random accuracy on average (lowest "
        f"{share.min():.3f}), the best seen {best.mean():.3f}, for {price.mean():.3f} of the cost (highest "
        f"{price.max():.3f}); "
        f"{int(((share >= 0.9) & (price <= 0.2)).sum())} of {len(rows)} seeds reach both aims"
    )


def main():
    parser = command_line(__doc__, 40, "mnist_10k.npz", word="runs")
    parser.add_argument("--controls", choices=[*SPACES], default="both")
    parser.add_argument("--method", choices=["map", "otf"], default="map")
    parser.add_argument("--random", type=int, help="compare with so many random trainings")
    parser.add_argument("--table-6", action="store_true", help="compute the paper's table 6, and train nothing")
    options = parser.parse_args()
    if options.table_6:
        table_6()
        return
    torch.set_num_threads(1)
    data = load(data_file(options.data, "mnist_10k.npz"))
    train(FIXED, 0, *data)  # the first training of a process is slower
    if options.random:
        against_random(options, data)
    else:
        experiment(options.controls, options, data)


if __name__ == "__main__":
    main()
