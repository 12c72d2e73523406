"""Trials as another tuner trains them: two at a time, an epoch of each in turn, by the words of Ray Tune."""

from types import SimpleNamespace


def accuracy(config, epoch):
    """Return a curve whose end depends on the learning rate."""
    return (0.95 - 3.0 * abs(config["lr"] - 0.1)) * epoch / (epoch + 1.0)


def driven(search, scheduler=None, trials=8, epochs=9, curve=accuracy, at_once=2, metric="acc", start=0):
    """Return the training of each trial: {name: (config, its values)}. The order of calls is Tune's."""
    trained, running, begun = {}, [], 0
    tune = SimpleNamespace(search_alg=SimpleNamespace(searcher=search))  # as SearchGenerator has it
    while True:
        while len(running) < at_once and begun < trials:
            name = f"trial-{start + begun}"
            config = search.suggest(name)
            if config is None or config == search.FINISHED:
                break
            begun += 1
            trial = SimpleNamespace(trial_id=name)
            if scheduler is not None:
                scheduler.on_trial_add(tune, trial)
            trained[name] = (config, [])
            running.append(trial)
        if not running:
            return trained
        for trial in list(running):
            config, values = trained[trial.trial_id]
            epoch = len(values) + 1
            values.append(curve(config, epoch))
            result = {metric: values[-1], "training_iteration": epoch, "time_this_iter_s": 1.0, "config/lr": 0.1}
            said = scheduler.on_trial_result(tune, trial, result) if scheduler is not None else "CONTINUE"
            if said == "CONTINUE":
                search.on_trial_result(trial.trial_id, result)
            if said == "STOP" or epoch == epochs:
                if scheduler is not None:
                    scheduler.on_trial_complete(tune, trial, result)
                search.on_trial_complete(trial.trial_id, result)
                running.remove(trial)
