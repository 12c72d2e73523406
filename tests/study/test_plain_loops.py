"""Plain loops of torch: a line names what a resumed trial starts without, and none comes if the program is right."""

import gc
import logging
import math
import warnings

import pytest
from paused_studies import pausing_study

from haltune import Float, Minimize, Study
from haltune.callbacks.loop import TrainingLoop
from haltune.policies import RandomSearch

torch = pytest.importorskip("torch")
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn  # noqa: E402
from torch.utils.data import DataLoader, TensorDataset  # noqa: E402

x = torch.randn(80, 4, generator=torch.Generator().manual_seed(3))
y = x.sum(1, keepdim=True)


class EarlyStopping:
    def __init__(self, patience=3):
        self.patience, self.counter, self.best = patience, 0, math.inf

    def __call__(self, loss):
        if loss < self.best:
            self.best, self.counter = loss, 0
        else:
            self.counter += 1
        return self.counter >= self.patience


class Setup:
    """A net and what one epoch needs; its losses are best at epoch 2."""

    def __init__(self, trial, **options):
        torch.manual_seed(1)
        self.trial, self.net, self.generator = trial, torch.nn.Linear(4, 1), torch.Generator().manual_seed(0)
        self.sgd = torch.optim.SGD(self.net.parameters(), trial.config["lr"], **options)
        self.loader = DataLoader(TensorDataset(x[:64], y[:64]), 32, shuffle=True, generator=self.generator)
        self.state = torch.load(trial.checkpoint) if trial.checkpoint else {}
        if self.state:
            self.net.load_state_dict(self.state["net"])

    def trains(self, batches=None):
        for inputs, targets in self.loader if batches is None else batches:
            self.sgd.zero_grad()
            torch.nn.functional.mse_loss(self.net(inputs), targets).backward()
            self.sgd.step()

    def saves(self, **more):
        state = {"net": self.net.state_dict(), **more}
        self.trial.save(lambda path: torch.save(state, path))

    def epochs(self):
        return range(int(self.trial.epoch) + 1, self.trial.max_epochs + 1)


HALF = [(x[:32], y[:32]), (x[32:64], y[32:64])]  # batches in a fixed order


def loss_of(epoch):
    return 1.0 + abs(epoch - 2)


def lines(caplog, train, at=(3,), trials=2):
    """Return the warnings and hints about a resumed trial."""
    caplog.clear()
    with caplog.at_level(logging.INFO, "haltune"), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        pausing_study(at=at, epochs=6, trials=trials).optimize(train)
    texts = dict.fromkeys([*caplog.messages, *(str(one.message) for one in warned)])
    return [text for text in texts if "has resumed" in text]


# -- what a resumed trial starts without -------------------------------------------------------------------------------


def test_a_generator_of_a_loader_that_starts_again_in_a_loop_over_range_is_hinted_at(caplog):
    def train(trial):
        setup = Setup(trial)
        for epoch in setup.epochs():
            setup.trains()
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves()
            if verdict.stops:
                break

    (hint,) = lines(caplog, train)
    assert "its loop is not over trial.epochs(), so haltune has not restored its random state" in hint


def test_a_generator_that_each_epoch_makes_anew_or_that_the_program_restores_is_not(caplog):
    def train(trial):
        setup = Setup(trial)
        if setup.state:
            setup.generator.set_state(setup.state["generator"])
        for epoch in setup.epochs():
            noise = torch.Generator().manual_seed(0)
            setup.trains((inputs + torch.rand(1, generator=noise), targets) for inputs, targets in setup.loader)
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves(generator=setup.generator.get_state())
            if verdict.stops:
                break

    assert not lines(caplog, train, at=(1,))


@pytest.mark.parametrize("does", ["nothing", "restores", "seeds each epoch"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_loop_over_range_that_draws_from_torch_is_hinted_at_unless_it_restores_or_seeds_it(caplog, does, at):
    def train(trial):
        setup = Setup(trial)
        if setup.state and does == "restores":
            torch.set_rng_state(setup.state["random"])
        for epoch in setup.epochs():
            if does == "seeds each epoch":
                torch.manual_seed(epoch)
            order = torch.randperm(64).split(32)
            noise = torch.nn.functional.dropout(torch.ones(64, 4000))  # many words
            setup.trains((x[rows], y[rows] + 0 * noise[rows, :1]) for rows in order)
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves(random=torch.get_rng_state())
            if verdict.stops:
                break

    assert ["restored its random state" in text for text in lines(caplog, train, at=(at,))] == [True] * (
        does == "nothing"
    )


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_loop_over_range_whose_loaders_do_not_shuffle_is_not_hinted_at(caplog, shuffle):
    def train(trial):
        setup = Setup(trial)
        loader = DataLoader(TensorDataset(x[:64], y[:64]), 32, shuffle=shuffle)
        setup.loader = DataLoader(TensorDataset(x[64:], y[64:]), 32)
        for epoch in setup.epochs():
            setup.trains(loader)
            assert len([*setup.loader]) > 0
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves()
            if verdict.stops:
                break

    assert ["restored its random state" in text for text in lines(caplog, train, at=(1,))] == [True] * shuffle


def test_an_average_that_a_loop_over_range_does_not_save_is_warned_of_and_a_restored_one_is_not(caplog):
    def train(trial, saves):
        setup = Setup(trial)
        average = AveragedModel(setup.net, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        if setup.state and saves:
            average.load_state_dict(setup.state["average"])
        for epoch in setup.epochs():
            setup.trains(HALF)
            average.update_parameters(setup.net)
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves(average=average.state_dict())
            if verdict.stops:
                break

    assert not lines(caplog, lambda trial: train(trial, True))
    (warning,) = lines(caplog, lambda trial: train(trial, False))
    assert "average is not as it was there" in warning


@pytest.mark.parametrize("restores", [False, True])
@pytest.mark.parametrize("loop", ["range", "while", "held", "helper"])
def test_a_patience_is_named_in_each_kind_of_loop_unless_it_is_restored(caplog, loop, restores):
    def within(epoch, setup, bad):
        setup.trains(HALF)
        verdict = setup.trial.report(loss_of(epoch), epoch)
        setup.saves(bad=bad + 1 if epoch > 2 else 0)
        return verdict

    def train(trial):
        setup, bad = Setup(trial), 0
        if setup.state and restores:
            bad = setup.state["bad"]
        if loop == "while":
            epoch = int(trial.epoch)
            while epoch < trial.max_epochs:
                epoch += 1
                verdict = within(epoch, setup, bad)
                if epoch <= 2:
                    bad = 0
                else:
                    bad += 1
                if verdict.stops or bad >= 4:
                    break
            return
        epochs = trial.epochs() if loop == "held" else setup.epochs()
        for epoch in epochs:
            if loop == "helper":
                verdict = within(epoch, setup, bad)
                bad = 0 if epoch <= 2 else bad + 1
            else:
                setup.trains(HALF)
                bad = 0 if epoch <= 2 else bad + 1
                verdict = trial.report(loss_of(epoch), epoch)
                setup.saves(bad=bad)
            if verdict.stops or bad >= 4:
                break

    found = lines(caplog, train, at=(4,) if loop in ("while", "helper") else (3,))
    if restores:
        assert not found
    else:
        (hint,) = found
        assert "with bad = 0 (1 where it paused), as at its start" in hint


def test_losses_in_a_list_in_a_dict_and_in_an_object_of_an_object_are_named_if_the_loop_decides_by_them(caplog):
    class Trainer:
        def __init__(self, setup):
            self.setup, self.stopper = setup, EarlyStopping(9)

    def train(trial):
        trainer, losses, state, history = Trainer(Setup(trial)), [], {"bad": 0, "shown": 0}, {"val": []}
        for epoch in trial.epochs():
            trainer.setup.trains(HALF)
            losses.append(loss_of(epoch))
            history["val"].append(loss_of(epoch))
            trial.report(losses[-1], epoch)
            trainer.setup.saves()
            state["bad"] = 0 if loss_of(epoch) <= min(history["val"]) else state["bad"] + 1
            state["shown"] += 1
            if len(losses) > 3 and min(losses[-3:]) > min(losses[:-3]) + 9:
                break
            if trainer.stopper(loss_of(epoch)) or state["bad"] > 9:
                break

    (hint,) = lines(caplog, train)
    for name in ("losses = no elements (3 values", "state['bad'] = 0 (1", "history['val'] = no elements (3 values"):
        assert name in hint
    assert "trainer.stopper.counter = 0 (1 where it paused)" in hint
    assert "shown" not in hint


def test_a_count_that_is_only_shown_is_not_named(caplog):
    class Trainer:
        def __init__(self, setup):
            self.setup, self.batches, self.seen = setup, 0, 0

        def epoch(self):
            self.setup.trains(HALF)
            self.batches += 2
            logging.info("batch %d", self.batches)
            self.seen += 1
            return self.seen

    def train(trial):
        trainer, steps, total, used = Trainer(Setup(trial)), 0, 0.0, 0
        for epoch in trainer.setup.epochs():
            trainer.epoch()
            steps += 2
            total += loss_of(epoch)
            mean = total / steps
            used = max(used, epoch)
            print(f"step {steps}: {mean:.2f}", trainer.batches)
            verdict = trial.report(loss_of(epoch), epoch, metrics={"mean": total / steps})
            trainer.setup.saves()
            if verdict.stops or used > 99:
                break

    (hint,) = lines(caplog, train)
    assert "with trainer.seen = 0 (3 where it paused), used = 0 (3 where it paused), as" in hint


def test_records_for_a_plot_or_a_log_and_entries_that_each_epoch_sets_are_not_named(caplog):
    def train(trial):
        setup, losses, history, metrics = Setup(trial), [], {"loss": [], "seconds": []}, {"loss": 0.0, "batches": 0}
        best, stages = {"loss": setup.state.get("best", math.inf)}, {"shown": 0}
        for epoch in setup.epochs():
            metrics["loss"], metrics["batches"] = 0.0, 0
            setup.trains(HALF)
            metrics["loss"] += loss_of(epoch)
            metrics["batches"] += 2
            if metrics["loss"] < best["loss"] and metrics["batches"] == 2:
                best["loss"] = metrics["loss"]
            losses.append(loss_of(epoch))
            history["loss"].append(loss_of(epoch))
            history["seconds"] = [*history["seconds"], 0.1]
            stages["shown"] += 1
            if len(losses) % 2 == 0:
                print(f"{losses[-1]:.2f}", sum(losses) / len(losses), stages["shown"])
            if history["loss"][-1] < 1.5:
                print("good", history["loss"])
            verdict = trial.report(losses[-1], epoch, metrics={"mean": sum(losses) / len(losses)})
            setup.saves(best=best["loss"])
            if verdict.stops or history["loss"][-1] > 99:
                break

    assert not lines(caplog, train)


class Mean:
    def __init__(self):
        self.sum = self.count = 0

    def update(self, value):
        self.sum, self.count = self.sum + value, self.count + 1

    @property
    def mean(self):
        return self.sum / max(self.count, 1)


def test_a_best_value_a_mean_and_a_count_that_only_decide_what_is_printed_are_not_named(caplog):
    def train(trial):
        setup, best, at, steps, seconds = Setup(trial), math.inf, 0, 0, Mean()
        for epoch in setup.epochs():
            setup.trains(HALF)
            seconds.update(0.1)
            left = seconds.mean * 3
            if steps % 4 == 0:
                print(f"step {steps}")
            steps += 2
            if loss_of(epoch) < best:
                best, at = loss_of(epoch), epoch
                print("best", best, at)
            print(f"{left:.1f} seconds left")
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves()
            if verdict.stops:
                break

    assert not lines(caplog, train)


def test_a_number_that_a_function_gets_is_named_even_if_only_the_result_is_printed(caplog):
    class Trainer:
        def __init__(self, setup):
            self.setup, self.beta = setup, 1.0

        def anneals(self):
            self.beta *= 0.5

        def trains(self):
            return trains_by(self.setup, scale=self.beta)

    def trains_by(setup, scale):
        setup.trains(HALF)
        return scale

    def minutes(seconds):
        return f"{seconds / 60:.1f} min"

    def train(trial):
        setup, temperature, total, longest = Setup(trial), 8.0, 0.0, 0.0
        trainer = Trainer(setup)
        for epoch in setup.epochs():
            train_loss = trains_by(setup, temperature)
            temperature = max(1.0, temperature * 0.7)
            print(f"train {train_loss:.2f}", trainer.trains())
            trainer.anneals()
            total, longest = total + 0.1, max(longest, 0.1)
            mean, rounded = round(total / epoch, 2), math.floor(longest)
            print(mean, rounded, f"{minutes(total)} in all")
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves()
            if verdict.stops:
                break

    (hint,) = lines(caplog, train)
    assert "with temperature = 8 (2.744 where it paused), trainer.beta = 1 (0.125 where it paused), as" in hint


class Timer:
    def __init__(self):
        self.calls, self.seconds, self.since = 0, 0.0, None

    def tic(self):
        if self.since is None:
            print("started")
        self.since = 1.0

    def toc(self):
        self.calls, self.seconds = self.calls + 1, self.seconds + 0.1
        return self.seconds / self.calls


class Rows:
    """As loggers are: it counts what it has written, and returns numbers for names of files."""

    def __init__(self):
        self.written, self.step, self.number = 0, 0, 0

    def row(self, values, step=None):
        self.step = self.step + 1 if step is None else step
        self.written += 1
        print(values)

    def following(self):
        self.number += 1
        return self.number


SHARED = Timer(), Rows()


def test_meters_loggers_and_counters_of_a_loop_or_of_all_trials_that_only_show_are_not_named(caplog):
    timer, rows = SHARED

    def train(trial):
        setup, mine, written, steps = Setup(trial), Timer(), Rows(), 0
        for epoch in trial.epochs():
            timer.tic()
            mine.tic()
            setup.trains(HALF)
            steps += 2  # and nothing reads it
            spent = timer.toc()
            print(f"{spent:.1f} seconds, {mine.toc():.1f}", f"plot{rows.following()}.png")
            rows.row({"loss": loss_of(epoch)})
            written.row({"loss": loss_of(epoch)})
            trial.report(loss_of(epoch), epoch)
            setup.saves()

    assert not lines(caplog, train)
    assert not [text for text in caplog.messages if "starts with" in text]


def test_an_average_that_has_not_started_where_a_trial_pauses_is_not_warned_of(caplog):
    def train(trial):
        setup = Setup(trial)
        average = AveragedModel(setup.net)
        for epoch in trial.epochs():
            setup.trains(HALF)
            if epoch >= 5:
                average.update_parameters(setup.net)
            trial.report(loss_of(epoch), epoch)
            setup.saves()

    assert not lines(caplog, train)


@pytest.mark.parametrize("saves", [False, True])
def test_a_rate_lowered_by_hand_and_not_saved_is_warned_of(caplog, saves):
    def train(trial):
        setup = Setup(trial)
        if setup.state and saves:
            setup.sgd.load_state_dict(setup.state["sgd"])
        for epoch in trial.epochs():
            setup.trains(HALF)
            for group in setup.sgd.param_groups:
                group["lr"] *= 0.5
            trial.report(loss_of(epoch), epoch)
            setup.saves(sgd=setup.sgd.state_dict())

    found = lines(caplog, train)
    assert ["its SGD started with the learning rate" in text for text in found] == [True] * (not saves)


@pytest.mark.parametrize("when", ["before", "after"], ids="{} the report".format)
@pytest.mark.parametrize("name", ["lr", "weight_decay"])
def test_a_number_of_an_optimizer_that_is_changed_once_is_named_at_each_later_epoch(caplog, name, when):
    def train(trial):
        setup = Setup(trial, weight_decay=0.1)
        for epoch in trial.epochs():
            setup.trains(HALF)
            for report in (when == "after", when == "before"):
                if report:
                    trial.report(loss_of(epoch), epoch)
                elif epoch == 2:
                    setup.sgd.param_groups[0][name] *= 0.5
            setup.saves()

    shown = {"lr": "learning rate", "weight_decay": "weight_decay 0.1 instead of 0.05"}[name]
    found = lines(caplog, train)
    assert [f"resumed after epoch 3, but its SGD started with the {shown}" in text for text in found] == [True]


@pytest.mark.parametrize("of", ["its first rate", "the rate before its last change"])
def test_a_rate_is_warned_of_that_a_training_loop_does_not_save_or_that_is_saved_before_it_is_lowered(caplog, of):
    def train(trial):
        setup = Setup(trial)
        if setup.state and of != "its first rate":
            setup.sgd.load_state_dict(setup.state["sgd"])

        def save(path):
            torch.save({"net": setup.net.state_dict()}, path)

        loop = TrainingLoop(trial, save=save) if of == "its first rate" else None
        for epoch in trial.epochs() if loop is None else loop:
            setup.trains(HALF)
            if loop is None:
                trial.report(loss_of(epoch), epoch)
                setup.saves(sgd=setup.sgd.state_dict())
            setup.sgd.param_groups[0]["lr"] *= 0.5
            if loop is not None:
                loop.report(loss_of(epoch))

    assert ["its SGD started with the learning rate" in text for text in lines(caplog, train)] == [True]


def test_an_optimizer_that_a_training_changes_to_where_it_resumes_has_a_rate_of_its_own(caplog):
    def train(trial):
        setup = Setup(trial)
        for epoch in trial.epochs():
            if epoch >= 4 and setup.sgd.param_groups[0]["lr"] == trial.config["lr"]:
                setup.sgd = torch.optim.SGD(setup.net.parameters(), trial.config["lr"] / 10)
            setup.trains(HALF)
            trial.report(loss_of(epoch), epoch)
            setup.saves()

    assert not lines(caplog, train)


@pytest.mark.parametrize("saves", [False, True])
def test_a_schedule_that_fabric_sets_up_and_that_starts_again_is_warned_of(caplog, saves):
    fabric = pytest.importorskip("lightning.fabric").Fabric(accelerator="cpu", devices=1)

    def train(trial):
        setup = Setup(trial)
        setup.net, setup.sgd = fabric.setup(setup.net, setup.sgd)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(setup.sgd, 9)
        if setup.state:
            setup.sgd.load_state_dict(setup.state["sgd"])
        if setup.state and saves:
            schedule.load_state_dict(setup.state["schedule"])
        for epoch in trial.epochs():
            setup.trains(HALF)
            schedule.step()
            trial.report(loss_of(epoch), epoch)
            setup.saves(sgd=setup.sgd.state_dict(), schedule=schedule.state_dict())

    found = lines(caplog, train)
    assert ["CosineAnnealingLR continues from step 0 instead of step 3" in text for text in found] == [True] * (
        not saves
    )


@pytest.mark.parametrize("scheduled", [False, True])
def test_all_objects_are_searched_for_schedules_once_where_a_trial_resumes_and_once_where_it_pauses(
    caplog, monkeypatch, scheduled
):
    searched, search = [], gc.get_referrers

    def counted(*objects):
        searched.extend(one for one in objects if isinstance(one, torch.optim.Optimizer))
        return search(*objects)

    def train(trial):
        setup = Setup(trial)
        if setup.state:
            setup.sgd.load_state_dict(setup.state["sgd"])
        schedule = torch.optim.lr_scheduler.StepLR(setup.sgd, 9) if scheduled else None
        for epoch in trial.epochs():
            setup.trains(HALF)
            trial.report(loss_of(epoch), epoch)
            if schedule is not None:
                schedule.step()
            setup.saves(sgd=setup.sgd.state_dict())

    monkeypatch.setattr(gc, "get_referrers", counted)
    lines(caplog, train, at=(3,), trials=1)
    assert len(searched) == 2  # it starts and pauses, then resumes and ends


PLATEAUS = (1.0, 2.0, 2.0, 1.0, 2.0, 2.0, 1.0)  # in the epochs 1 to 7


@pytest.mark.parametrize("by", ["epoch", "batch", "constant", "plateaus", "the batches of plateaus", "a scheduler"])
@pytest.mark.parametrize("at", [1, 3])
def test_a_rate_that_each_epoch_sets_before_its_first_step_is_not(caplog, by, at):
    def train(trial):
        setup, rates = Setup(trial), [trial.config["lr"] * factor for factor in PLATEAUS]
        group = setup.sgd.param_groups[0]
        epochs = trial.epochs()
        if by == "a scheduler" and trial.epoch:  # as timm's: set where it resumes, and at the end of each epoch
            group["lr"] = rates[int(trial.epoch)]
        for epoch in epochs:
            if by == "epoch":
                group["lr"] = trial.config["lr"] * 0.5**epoch
            elif by == "plateaus":
                group["lr"] = rates[epoch - 1]
            for place, batch in enumerate(HALF):
                if by == "batch":
                    group["lr"] = trial.config["lr"] * (1.0 - place / 4)
                elif "batches of" in by:
                    group["lr"] = rates[epoch - 1]
                setup.trains([batch])
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves()
            if by == "a scheduler":
                if verdict.stops:
                    break
                group["lr"] = rates[epoch]

    assert not lines(caplog, train, at=(at,))


def test_what_a_program_trains_before_it_loads_the_state_is_no_start_of_its_loop(caplog):
    def train(trial):
        bad, steps, average = 0, 0, None
        for warm_up in range(3):  # its steps come before the state is loaded
            setup = Setup(trial)
            average = AveragedModel(setup.net)
            setup.trains(HALF)
            steps += warm_up
        if setup.state:
            setup.net.load_state_dict(setup.state["net"])
            average.load_state_dict(setup.state["average"])
            bad, steps = setup.state["bad"], setup.state["steps"]
        for epoch in setup.epochs():
            setup.trains(HALF)
            average.update_parameters(setup.net)
            bad, steps = bad + (epoch > 2), steps + 2
            verdict = trial.report(loss_of(epoch), epoch)
            setup.saves(bad=bad, steps=steps, average=average.state_dict())
            if verdict.stops or bad > 9:
                break

    assert not lines(caplog, train)


# -- what all trials share ---------------------------------------------------------------------------------------------


class Curriculum:
    def __init__(self):
        self.level = 0

    def target(self):
        return 3.0 + self.level

    def harder(self):
        self.level += 1


class Best:
    """Saves the best model of all trials."""

    def __init__(self):
        self.loss, self.epoch, self.seen = math.inf, 0, 0

    def update(self, loss, epoch):
        self.seen += 1
        self.shown = self.seen
        if loss < self.loss:
            self.loss, self.epoch = loss, epoch
        if self.seen % 2 == 0:
            print(f"{self.seen} epochs, best {self.loss}")
        return self


class Resets(EarlyStopping):
    def reset(self):
        self.counter, self.best = 0, math.inf


def searched(caplog, train):
    study = Study({"lr": Float(0.01, 0.2)}, Minimize("val_loss"), max_epochs=4, policy=RandomSearch(2), seed=0)
    with caplog.at_level(logging.INFO, "haltune"):
        study.optimize(train)
    return [text for text in caplog.messages if "starts with" in text]


@pytest.mark.parametrize("over", ["range", "epochs"])
def test_a_stopper_and_a_curriculum_that_all_trials_share_are_named(caplog, over):
    stopper, data = EarlyStopping(99), Curriculum()

    def train(trial):
        setup = Setup(trial)
        for epoch in setup.epochs() if over == "range" else trial.epochs():
            setup.trains(loader)
            loader.dataset.set_level()
            data.harder()
            trial.report(loss_of(epoch) + data.target(), epoch)
            if stopper(loss_of(epoch)):
                break

    class Harder(torch.utils.data.Dataset):
        def __init__(self):
            self.level = self.reads = 0

        def __len__(self):
            return 2

        def __getitem__(self, place):
            self.reads += 1
            return HALF[0][0][place], HALF[0][1][place] + self.level

        def set_level(self):
            self.level += 1

    loader = DataLoader(Harder())

    (hint,) = searched(caplog, train)
    assert ".dataset.level = 4 (0 where another trial started)" in hint
    assert "reads" not in hint
    assert "data.level = 4 (0 where another trial started)" in hint
    assert "stopper.counter = 2 (0 where another trial started)" in hint
    assert "make one for each trial, within the loop" in hint


def test_a_record_of_all_trials_a_stopper_of_each_and_one_that_is_reset_are_not(caplog):
    best, resets = Best(), Resets(99)

    def train(trial):
        setup, stopper = Setup(trial), EarlyStopping(99)
        resets.reset()
        for epoch in trial.epochs():
            setup.trains(HALF)
            best.update(loss_of(epoch), epoch)
            trial.report(loss_of(epoch), epoch)
            if stopper(loss_of(epoch)) or resets(loss_of(epoch)):
                break

    assert not searched(caplog, train)


def test_a_second_trial_that_a_shared_stopper_ends_after_an_epoch_gets_no_advice_on_its_verdict(caplog):
    stopper = EarlyStopping(1)

    def train(trial):
        setup = Setup(trial)
        for epoch in trial.epochs():
            setup.trains(HALF)
            trial.report(loss_of(epoch), epoch)
            if stopper(loss_of(epoch)):
                break

    (hint,) = searched(caplog, train)
    assert "stopper.best = 1 (inf where another trial started)" in hint
    assert not [text for text in caplog.messages if "always true" in text]
