"""The value of continuing, after each training, until the expected score of the last configuration reaches it.

python docs/figures/autobct.py
"""

import numpy as np
from drawing import Sheet

from haltune import Float, Maximize, Problem, Space, Study
from haltune.log.events import Started
from haltune.policies import AutoBCT


def value(config):
    """One optimum."""
    return 0.9 - 0.8 * (config["size"] - 0.55) ** 2


problem = Problem(Space({"size": Float(0.0, 1.0)}), Maximize("val_acc", bounds=(0.5, 1.0)), max_epochs=1)
policy = AutoBCT(gamma=0.005)
study = Study(problem, policy, seed=0, verbose=0)
for trial in study:
    with trial:
        trial.report(value(trial.config), cost=1 + 3 * trial.config["size"])

state = policy.start(problem)
for event in study.events():
    state = policy.fold(state, event)
ended = policy.assess(study.history, state)
begun = [event for event in study.events() if isinstance(event, Started) and "value" in event.evidence]
going = [event.evidence["value"] for event in begun] + [float(policy.worth(problem, ended).max())]
last = [event.evidence.get("last", np.nan) for event in begun] + [ended.heights[-1]]
trained = [event.trial for event in begun] + [len(study.trials)]
print(len(study.trials), "trainings:", study.outcome.reason)

sheet = Sheet(
    "autobct", "Left: the predicted score at the end. Right: the value of continuing, until it is not worth its cost."
)
left = sheet.panel(56, 310, (0, 1), (0.5, 1.0))
left.axes("Predicted score at the end", "size", "val_acc", (0, 0.5, 1), (0.5, 0.7, 0.9))
order = np.argsort(ended.controls.points[:, 0])
x, mean = ended.controls.points[order, 0], ended.x.m[order, 0]
sd = np.sqrt(np.diag(ended.x.c))[order]
left.band(x, *(np.clip([ended.ruler.raw(v) for v in mean + k * sd], 0.5, 1.0) for k in (-2, 2)), "one")
left.line(x, [ended.ruler.raw(v) for v in mean], "one", 2)
left.line(x, [value({"size": v}) for v in x], "quiet", 1.5, "4 3")
left.dots([t.config["size"] for t in study.trials], [t.values[-1] for t in study.trials], "ink")

low, high = min(map(float, [*going, *last])) - 0.03, max(map(float, [*going, *last])) + 0.03
right = sheet.panel(430, 310, (trained[0] - 0.2, trained[-1] + 0.2), (low, high))
right.axes(
    "Continue, or keep the last",
    "trainings done",
    "score from 0 to 1",
    trained,
    [v for v in np.arange(0, 1.2, 0.1) if low < v < high],
    "{:.2g}".format,
)
right.line(trained, going, "one", 2)
right.dots(trained, going, "one")
right.line(trained, last, "two", 2)
right.dots(trained, last, "two")
right.note(trained[0], going[0], "value of continuing", "one", dy=-10)
right.note(trained[-1], min(last) + 0.1, "score of the last", "two", "end")
sheet.write()
