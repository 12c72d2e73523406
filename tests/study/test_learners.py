"""Estimators and boosters in a loop of the user's own: no optimizer of torch shows what trains."""

import numpy as np
import pytest
from paused_studies import pausing_study

from haltune.callbacks.loop import TrainingLoop
from haltune.errors import HaltuneWarning, NotSupported

RNG = np.random.default_rng(0)
X = RNG.random((120, 4))
Y = X[:, 0] * X[:, 1] + 0.1 * RNG.normal(size=120)


def loss(model, x=X):
    return float(np.mean((model.predict(x) - Y) ** 2))


def sgd(**options):
    linear = pytest.importorskip("sklearn.linear_model", reason="scikit-learn is not installed")
    return linear.SGDRegressor(random_state=0, **options)


def mlp():
    neural = pytest.importorskip("sklearn.neural_network", reason="scikit-learn is not installed")
    return neural.MLPRegressor(hidden_layer_sizes=(3,), random_state=0)


def study(trials=2, at=(), epochs=3):
    return pausing_study(at=at, epochs=epochs, trials=trials, metric="loss", verbose=0)


def steps(shared):
    shared.partial_fit(X, Y)


def warm(shared):
    """One pass of a fit that continues."""
    shared.set_params(warm_start=True, max_iter=1).fit(X, Y)


class Wrapped:
    """A model of the program's own around an estimator."""

    def __init__(self, inner):
        self.inner = inner

    def partial_fit(self, x, y):
        self.inner.partial_fit(x, y)

    def predict(self, x):
        return self.inner.predict(x)


@pytest.mark.filterwarnings("ignore:Stochastic Optimizer", "ignore:Maximum number of iteration")
@pytest.mark.parametrize(
    ("make", "train"),
    [(sgd, steps), (mlp, steps), (lambda: Wrapped(sgd()), steps), (sgd, warm), (mlp, warm)],
    ids=["sgd", "mlp", "own", "sgd, warm start", "mlp, warm start"],
)
def test_an_estimator_that_another_trial_has_trained_is_refused_before_it_trains(make, train):
    shared = make()
    trained = []
    with pytest.raises(
        NotSupported, match=r"^Trial 1 would .* the \w+ object that trial 0 has trained. Make one for e"
    ):
        for trial in study():
            with trial:
                for _ in trial.epochs():
                    train(shared)
                    trained.append(trial.id)
                    trial.report(loss(shared))
    assert trained == [0, 0, 0]


def test_the_last_step_of_a_pipeline_that_another_trial_has_trained_is_refused():
    last = sgd()
    pipeline = pytest.importorskip("sklearn.pipeline").make_pipeline(last)
    del last
    with pytest.raises(NotSupported, match="SGDRegressor object that trial 0 has trained"):
        for trial in study():
            for _ in trial.epochs():
                pipeline[-1].partial_fit(X, Y)
                trial.report(loss(pipeline))


def test_a_forest_that_another_trial_has_grown_is_refused_without_a_block_and_its_loop():
    ensemble = pytest.importorskip("sklearn.ensemble", reason="scikit-learn is not installed")
    forest = ensemble.RandomForestRegressor(warm_start=True, random_state=0)
    with pytest.raises(NotSupported, match="RandomForestRegressor object that trial 0 has trained"):
        for trial in study():
            for size in trial.epochs():
                trial.report(loss(forest.set_params(n_estimators=3 * trial.id + size).fit(X, Y)))


def test_an_estimator_of_another_fold_is_refused():
    with pytest.raises(
        NotSupported, match=r"^Fold 1 of trial 0 .* object that fold 0 has trained. Make one for each fold"
    ):
        for trial in study():
            with trial:
                shared = sgd()
                for fold in trial.folds(2):
                    for _ in fold.epochs():
                        shared.partial_fit(X, Y)
                        fold.report(loss(shared))


def refits(shared, epoch):
    shared.set_params(max_iter=epoch, tol=None).fit(X, Y)
    return shared


def starts_afresh(shared, epoch):
    (shared.fit if epoch == 1 else shared.partial_fit)(X, Y)
    return shared


def loads_in_place(shared, epoch):
    if epoch == 1:
        vars(shared).clear()
        vars(shared).update(vars(sgd()))
    shared.partial_fit(X, Y)
    return shared


@pytest.mark.parametrize("train", [refits, starts_afresh, loads_in_place])
def test_a_shared_estimator_that_each_trial_trains_from_its_start_is_no_fault(train):
    shared, across = sgd(), sgd()
    s = study(trials=3)
    for trial in s:
        with trial:
            for epoch in trial.epochs():
                trial.report(loss(train(shared, epoch)))
        across.partial_fit([[trial.config["lr"]]], [0.0])  # between trials it may learn from all of them
    fresh = sgd()
    assert [t.values.tolist() for t in s.trials] == [[loss(train(fresh, epoch)) for epoch in (1, 2, 3)]] * 3


# boosters


def boosted(trial, save, **options):
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    data, given = xgb.DMatrix(X, Y), {"eta": 0.1, "seed": 3, **options}
    booster = xgb.Booster(given, [data])
    if trial.checkpoint:
        booster.load_model(trial.checkpoint)
        booster.set_param(given)
    for epoch in (loop := TrainingLoop(trial, save=booster.save_model, suffix=".ubj")) if save else trial.epochs():
        booster.update(data, epoch)
        if save:
            loop.report(loss(booster, data))
        elif trial.report(loss(booster, data)).stops:
            trial.save(booster.save_model, ".ubj")


@pytest.mark.filterwarnings("ignore:A trial cannot be paused:haltune.errors.HaltuneWarning")
@pytest.mark.parametrize("save", [False, True], ids=["own save", "TrainingLoop"])
def test_a_booster_that_draws_is_not_paused_in_a_loop_of_the_users_own_and_one_that_does_not_is(save):
    for options in ({"subsample": 0.5}, {}):
        curves = []
        for at in ((), (2, 3)):
            s = study(at=at, epochs=5)
            for trial in s:
                with trial:
                    boosted(trial, save, **options)
            curves.append([t.values.tolist() for t in s.trials])
            assert [t.attempt for t in s.trials] == [3 if at and not options else 1] * 2
        assert curves[0] == curves[1]


def test_the_reason_is_given_once_and_names_the_parameter():
    with pytest.warns(HaltuneWarning) as told:
        for trial in study(at=(1, 2)):
            with trial:
                boosted(trial, False, subsample=0.5, colsample_bytree=0.5)
    [one] = [str(w.message) for w in told if w.category is HaltuneWarning]
    assert one == (
        "A trial cannot be paused, because XGBoost does not save the random numbers of colsample_bytree and subsample, "
        "so a resumed training would differ; it keeps training"
    )


def test_a_booster_from_before_the_trial_that_it_does_not_train_prevents_no_pause():
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    baseline = xgb.train({"subsample": 0.5}, xgb.DMatrix(X, Y), 2)
    s = study(at=(1,), trials=1)
    for trial in s:
        with trial:
            boosted(trial, False)
    assert (s.trials[0].attempt, baseline.num_boosted_rounds()) == (2, 2)


def test_an_estimator_of_xgboost_that_is_trained_again_as_a_whole_may_draw_and_pause():
    xgb = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    pytest.importorskip("sklearn", reason="scikit-learn is not installed")
    model, curves = xgb.XGBRegressor(subsample=0.5), []
    for at in ((), (2,)):
        s = study(at=at, epochs=4, trials=1)
        for trial in s:
            assert (trial.checkpoint is None) == (trial.epoch == 0)
            for size in trial.epochs():
                if trial.report(loss(model.set_params(n_estimators=size).fit(X, Y))).stops:
                    trial.save(model.save_model, ".ubj")
        curves.append(s.trials[0].values.tolist())
    assert (s.trials[0].attempt, curves[0]) == (2, curves[1])


@pytest.mark.filterwarnings("ignore:A trial cannot be paused:haltune.errors.HaltuneWarning")
def test_catboost_is_not_paused_where_it_continues_an_init_model_and_where_it_starts_again_it_is():
    catboost = pytest.importorskip("catboost", reason="CatBoost is not installed")
    options = {"verbose": False, "thread_count": 1, "allow_writing_files": False, "random_seed": 3}

    def continued(trial):
        model = trial.checkpoint
        for _ in trial.epochs():
            model = catboost.CatBoostRegressor(iterations=1, **options).fit(X, Y, init_model=model)
            if trial.report(loss(model)).stops:
                trial.save(model.save_model, ".cbm")

    def afresh(trial):
        for epoch in trial.epochs():
            model = catboost.CatBoostRegressor(iterations=2 * epoch, **options).fit(X, Y)
            if trial.report(loss(model)).stops:
                trial.save(model.save_model, ".cbm")

    found = {}
    for program in (continued, afresh):
        for at in ((1,), (2,)):
            s = study(at=at, trials=1)
            for trial in s:
                with trial:
                    assert trial.checkpoint is None or trial.epoch
                    program(trial)
            found[program, at] = s.trials[0].attempt
    assert [*found.values()] == [1, 1, 2, 2]


@pytest.mark.filterwarnings("ignore:A trial cannot be paused:haltune.errors.HaltuneWarning")
def test_lightgbm_by_hand_is_not_paused_where_it_draws_and_by_train_it_is():
    lgb = pytest.importorskip("lightgbm", reason="LightGBM is not installed")
    given = {"verbose": -1, "bagging_fraction": 0.5, "bagging_freq": 1, "num_threads": 1, "min_data_in_leaf": 2}

    def by_hand(trial):
        booster = lgb.Booster(given, lgb.Dataset(X, Y))
        for _ in trial.epochs():
            booster.update()
            if trial.report(loss(booster)).stops:
                trial.save(booster.save_model, ".txt")

    def by_train(trial):
        booster = trial.checkpoint
        for _ in trial.epochs():
            booster = lgb.train(given, lgb.Dataset(X, Y), 1, init_model=booster)
            if trial.report(loss(booster)).stops:
                trial.save(booster.save_model, ".txt")

    def by_callback(trial):
        def reports(env):
            verdict = trial.report(env.evaluation_result_list[0][2])
            if verdict.stops:
                trial.save(env.model.save_model, ".txt")
                raise lgb.callback.EarlyStopException(env.iteration, env.evaluation_result_list)

        data, held_out = lgb.Dataset(X, Y), lgb.Dataset(X, Y)
        rounds = trial.max_epochs - trial.epoch
        lgb.train(given, data, rounds, valid_sets=[held_out], init_model=trial.checkpoint, callbacks=[reports])

    found = {}
    for program in (by_hand, by_callback, by_train):
        s = study(at=(2,), trials=1)
        for trial in s:
            with trial:
                program(trial)
        found[program] = s.trials[0].attempt
    assert found == {by_hand: 1, by_callback: 1, by_train: 2}


def test_a_booster_that_only_prepares_the_data_of_a_net_does_not_keep_the_trial_from_a_pause():
    xgboost = pytest.importorskip("xgboost", reason="XGBoost is not installed")
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    s = study(trials=1, at=(1,))
    for trial in s:
        with trial:
            booster = xgboost.train({"subsample": 0.5, "nthread": 1}, xgboost.DMatrix(X, Y), 2)
            inputs = torch.as_tensor(booster.predict(xgboost.DMatrix(X)))[:, None]
            net = torch.nn.Linear(1, 1)
            sgd = torch.optim.SGD(net.parameters(), 0.1)
            if trial.checkpoint:
                net.load_state_dict(torch.load(trial.checkpoint))
            for _ in trial.epochs():
                sgd.zero_grad()
                net(inputs).square().mean().backward()
                sgd.step()
                if trial.report(1.0).stops:
                    trial.save(lambda path, net=net: torch.save(net.state_dict(), path))
    assert s.trials[0].attempt == 2
