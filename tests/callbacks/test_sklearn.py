"""The loop over scikit-learn's estimators that learn in parts."""

import os
import signal

import numpy as np
import pytest
from callback_fakes import PAUSE, STOP, FakeTrial
from interrupted_fits import handlers  # noqa: F401
from paused_studies import PausesAt

pytest.importorskip("sklearn", reason="scikit-learn is not installed")

import sklearn.metrics
from sklearn.base import clone
from sklearn.cluster import MiniBatchKMeans
from sklearn.decomposition import IncrementalPCA
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    IsolationForest,
    RandomForestClassifier,
)
from sklearn.linear_model import LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import SVC

from haltune import Float, Maximize, Problem, Space, Study
from haltune.callbacks import sklearn as loops
from haltune.callbacks.sklearn import fit, load
from haltune.errors import HaltuneWarning, InvalidInput, NotSupported

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
Y = (X[:, 0] + X[:, 1] ** 2 + 0.5 * RNG.normal(size=120) > 0.8).astype(int)
HELD_OUT = X[80:], Y[80:]


def train(trial, estimator=None, **options):
    estimator = SGDClassifier(random_state=0) if estimator is None else estimator
    return fit(trial, estimator, X[:80], Y[:80], **{"validation": HELD_OUT, **options})


def accuracies(epochs=3, verdicts=None, **options):
    return FakeTrial("accuracy", epochs, verdicts, maximize=True, **options)


def study(store=None, at=(2,), epochs=5, metric="accuracy", **options):
    problem = Problem(Space({"alpha": Float(1e-4, 1e-2)}), Maximize(metric), epochs)
    return Study(problem, PausesAt(1, at=at), store=store, seed=0, verbose=0, **options)


def test_every_epoch_is_scored_on_the_validation_data():
    trial = accuracies()
    model = train(trial)
    assert trial.epochs == [1, 2, 3]
    assert trial.values[-1] == model.score(*HELD_OUT)
    assert trial.endings == [None]


def test_the_estimator_given_stays_as_it_is_so_that_trials_do_not_train_each_others():
    estimator = SGDClassifier(random_state=0)
    one, two = train(accuracies(), estimator), train(accuracies(), estimator)
    assert not hasattr(estimator, "coef_")
    np.testing.assert_array_equal(one.coef_, two.coef_)


def test_a_stop_ends_the_training_after_its_epoch():
    trial = accuracies(9, {2.0: STOP})
    assert train(trial).t_ == 2 * 80 + 1
    assert (trial.epochs, trial.endings) == ([1, 2], [None])


def test_data_frames_sparse_matrices_and_regressors_are_trained():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    from scipy.sparse import csr_matrix

    plain = train(accuracies()).coef_
    frame, targets = pandas.DataFrame(X, columns=list("abcd")), pandas.Series(Y)
    told = fit(
        accuracies(), SGDClassifier(random_state=0), frame[:80], targets[:80],
        validation=(frame[80:], targets[80:]),
    )  # fmt: skip
    np.testing.assert_array_equal(told.coef_, plain)
    rows, trial = csr_matrix(X), accuracies()
    fit(trial, SGDClassifier(random_state=0), rows[:80], Y[:80], validation=(rows[80:], Y[80:]))
    assert trial.epochs == [1, 2, 3]
    trial = FakeTrial("neg_mean_squared_error", maximize=True)
    model = train(trial, SGDRegressor(random_state=0))
    assert trial.values[-1] == -sklearn.metrics.mean_squared_error(Y[80:], model.predict(X[80:]))


def test_scorers_are_named_or_functions():
    trial = FakeTrial("val_auc", maximize=True)
    model = train(trial, scoring="roc_auc")
    assert trial.values[-1] == sklearn.metrics.roc_auc_score(Y[80:], model.decision_function(X[80:]))
    trial = FakeTrial("loss")
    train(trial, scoring=lambda model, x, y: 1 - model.score(x, y))
    assert 0 <= trial.values[-1] <= 1


def test_a_metric_that_is_no_scorer_says_what_to_give():
    with pytest.raises(InvalidInput, match=r"'acuracy' is not a .*scorer.*such as 'accuracy'.*\(estimator, x, y\)"):
        train(FakeTrial("acuracy", maximize=True))
    with pytest.raises(InvalidInput, match=r"larger is better.*Maximize\('neg_log_loss'\)"):
        train(FakeTrial("neg_log_loss"))


def test_each_of_several_goals_is_scored_by_its_name():
    def trained(goals, scoring=None):
        s = Study({"alpha": Float(1e-4, 1e-2)}, goals, max_epochs=3, budget="1 trial", seed=0, verbose=0)
        for trial in s:
            with trial:
                model = train(trial, scoring=scoring)
        return s.trials[0], model

    record, model = trained([Maximize("accuracy"), Maximize("roc_auc")])
    auc = sklearn.metrics.roc_auc_score(Y[80:], model.decision_function(X[80:]))
    assert (record.values[-1], record.metrics["roc_auc"][-1]) == (model.score(*HELD_OUT), auc)
    own = [Maximize("accuracy"), Maximize("simplicity")]
    with pytest.raises(InvalidInput, match=r"'simplicity' is not a .*scorer"):
        trained(own)
    with pytest.raises(InvalidInput, match=r"is one number, but a report needs 2: accuracy, simplicity"):
        trained(own, "accuracy")
    record, _ = trained(own, lambda m, x, y: {"accuracy": m.score(x, y), "simplicity": 1.0})
    assert record.metrics["simplicity"].tolist() == [1.0] * 3


@pytest.mark.parametrize(
    ("library", "kind"),
    [("xgboost", "XGBClassifier"), ("lightgbm", "LGBMClassifier"), ("catboost", "CatBoostClassifier")],
)
def test_an_estimator_of_a_library_with_a_callback_of_its_own_names_this_one(library, kind):
    estimator = getattr(pytest.importorskip(library, reason=f"{library} is not installed"), kind)()
    trial = accuracies()
    with pytest.raises(
        InvalidInput, match=rf"{kind} trains in rounds.* the HaltuneCallback of haltune.callbacks.{library},"
    ):
        train(trial, estimator)
    assert trial.reports == []


def test_an_estimator_that_learns_all_at_once_and_what_is_no_trial_are_refused():
    with pytest.raises(InvalidInput, match=r"SVC does not train in parts.*SGDClassifier"):
        train(accuracies(), SVC())
    with pytest.raises(InvalidInput, match=r"Study.*is not a trial"):
        train(study())


def test_labels_that_an_epoch_lacks_are_named_by_classes():
    model = train(accuracies(), classes=[0, 1, 2])
    assert model.classes_.tolist() == [0, 1, 2]


def test_a_loss_is_scored_by_its_name_without_neg():
    trial = FakeTrial("log_loss")
    model = train(trial, SGDClassifier(loss="log_loss", random_state=0))
    assert trial.values[-1] == sklearn.metrics.log_loss(Y[80:], model.predict_proba(X[80:]))
    trial = FakeTrial("val_loss")
    model = train(trial, SGDRegressor(random_state=0), scoring="neg_mean_squared_error")
    assert trial.values[-1] == sklearn.metrics.mean_squared_error(Y[80:], model.predict(X[80:]))
    with pytest.raises(InvalidInput, match=r"compares targets with predictions.*lambda estimator, x, y: log_loss"):
        train(FakeTrial("log_loss"), scoring=sklearn.metrics.log_loss)
    with pytest.raises(InvalidInput, match=r"larger is better"):
        train(FakeTrial("loss"), scoring=sklearn.metrics.make_scorer(sklearn.metrics.log_loss))


def hits(model, x, y):
    return float((model.predict(x) == y).mean())


@pytest.mark.parametrize("outputs", [2, 3])
def test_several_outputs_and_labels_are_classes_of_their_own(outputs):
    y = (X[:, :outputs] > 0).astype(int)
    named = y.astype(str)
    for estimator, targets in (
        (MLPClassifier((8,), learning_rate_init=0.05, random_state=0), y),
        (MultiOutputClassifier(SGDClassifier(random_state=0)), y),
        (MultiOutputClassifier(SGDClassifier(random_state=0)), named),
    ):
        trial = accuracies(20)
        model = fit(trial, estimator, X[:80], targets[:80], validation=(X[80:], targets[80:]), scoring=hits)
        assert model.predict(X[:5]).shape == (5, outputs)
        assert trial.values[-1] > 0.7


def test_classes_that_the_first_batch_lacks_are_learnt_from_later_ones():
    y = np.arange(120) % 3
    trial = accuracies(2)
    model = fit(trial, GaussianNB(), X[:80], y[:80], validation=(X[80:], y[80:]), batch_size=1)
    assert model.classes_.tolist() == [0, 1, 2]


def test_sample_weights_follow_their_samples():
    heavy = np.where(Y[:80] == 1, 3.0, 1.0)
    model = train(accuracies(2), sample_weight=heavy, batch_size=16)
    same = train(accuracies(2), SGDClassifier(random_state=0, class_weight={0: 1.0, 1: 3.0}), batch_size=16)
    np.testing.assert_allclose(model.coef_, same.coef_)
    with pytest.raises(InvalidInput, match="takes no sample_weight"):
        train(accuracies(), Own(), sample_weight=heavy)


class Own(SGDClassifier):
    def partial_fit(self, X, y, classes=None):
        return super().partial_fit(X, y, classes)


def centres(model, x, y):
    return model.score(x) if hasattr(model, "score") else -float(np.abs(model.transform(x)).mean())


@pytest.mark.parametrize("make", [lambda: MiniBatchKMeans(3, n_init=1), lambda: IncrementalPCA(2)])
def test_an_estimator_without_targets_learns_and_resumes_exactly(make):
    pytest.importorskip("skops", reason="skops is not installed")
    found = []
    for at in ((), (2,)):
        s = study(at=at, metric="score")
        for trial in s:
            with trial:
                np.random.seed(0 if trial.attempt == 1 else 7)  # noqa: NPY002
                options = {"validation": (X[80:], None), "scoring": centres, "batch_size": 20}
                model = fit(trial, make(), X[:80], **options)
        found.append((s.trials[0].attempt, s.trials[0].values.tolist(), model.transform(X)))
    (one, values, straight), (other, same, resumed) = found
    assert (one, other, values) == (1, 2, same)
    np.testing.assert_array_equal(straight, resumed)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [
        (make_pipeline(StandardScaler(), SGDClassifier()), r"pipeline\[:-1\]\.fit_transform\(x, y\)"),
        (GradientBoostingClassifier(n_iter_no_change=2), r"ends its training itself\. Leave it out"),
        (HistGradientBoostingClassifier(early_stopping=True), "Leave it out"),
        (RandomForestClassifier(2), r"RandomForestClassifier\(n_estimators=2\) cannot grow in 3 epochs"),
        (AdaBoostClassifier(), "AdaBoostClassifier does not train in parts"),
        (MLPClassifier(early_stopping=True), r"Leave it out.*Maximize\('accuracy', of='best'\)"),
    ],
)
def test_what_cannot_be_trained_in_parts_says_what_to_do(estimator, said):
    trial = accuracies()
    with pytest.raises(InvalidInput, match=said):
        train(trial, estimator)
    assert trial.reports == []


def test_missing_targets_are_named():
    with pytest.raises(InvalidInput, match="SGDClassifier learns from targets"):
        fit(accuracies(), SGDClassifier(), X, validation=(X, None))
    with pytest.raises(InvalidInput, match="there are no targets"):
        fit(accuracies(), MiniBatchKMeans(2), X, validation=(X, None))
    with pytest.raises(InvalidInput, match=r"validation=\(x, None\)"):
        fit(accuracies(), MiniBatchKMeans(2), X, validation=X)


# pausing


def test_the_best_estimator_comes_back():
    pytest.importorskip("skops", reason="skops is not installed")
    s = study(at=())
    for trial in s:
        with trial:
            model = train(
                trial, MLPRegressor(hidden_layer_sizes=(3,)), scoring=lambda m, x, y: -abs(m.predict(x) - y).mean()
            )
    np.testing.assert_array_equal(load(s.best.checkpoint).predict(X), model.predict(X))
    assert s.best.checkpoint.endswith(".skops")


def test_what_a_scoring_object_remembers_continues_after_a_pause():
    pytest.importorskip("skops", reason="skops is not installed")

    class Smoothed:
        def __init__(self):
            self.rows = np.random.default_rng(0)

        def __call__(self, model, x, y):
            drawn = self.rows.integers(len(x), size=len(x))
            self.mean = 0.5 * getattr(self, "mean", 0.0) + model.score(x[drawn], y[drawn])
            return self.mean

    curves = []
    for at in ((), (2, 3)):
        s = study(at=at)
        for trial in s:
            with trial:
                train(trial, scoring=Smoothed())
        curves.append(s.trials[0].values.tolist())
    assert s.trials[0].attempt == 3
    assert curves[0] == curves[1]


def test_an_estimator_of_somebodys_own_is_not_paused_and_the_warning_names_it():
    pytest.importorskip("skops", reason="skops is not installed")

    class Own(GaussianNB):
        pass

    trial = accuracies(4, {2.0: PAUSE})
    trial.save = lambda write, suffix, **options: write(os.devnull)
    with pytest.warns(HaltuneWarning, match=r"has .*Own, which skops does not load; it keeps training"):
        train(trial, Own())
    assert (trial.epochs, trial.declined) == ([1, 2, 3, 4], 1)


def test_without_skops_nothing_is_saved_and_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(loops.importlib.util, "find_spec", lambda name: None)
    trial = accuracies(4, {2.0: PAUSE})
    with pytest.warns(HaltuneWarning, match=r"skops is not installed.*again from its start.*pip install .*sklearn"):
        train(trial)
    assert (trial.epochs, trial.saved, trial.endings) == ([1, 2], [], [None])


@pytest.mark.usefixtures("handlers")
def test_ctrl_c_finishes_the_epoch_and_the_search_continues_exactly_there(tmp_path):
    pytest.importorskip("skops", reason="skops is not installed")

    def interrupting(model, x, y):
        if model.t_ == 2 * 80 + 1 and not sent:
            sent.append(os.kill(os.getpid(), signal.SIGINT))
        return model.score(x, y)

    sent = []
    with pytest.raises(KeyboardInterrupt):
        for trial in study(tmp_path / "search.db", ()):
            with trial:
                train(trial, scoring=interrupting)
    s = study(tmp_path / "search.db", ())
    for trial in s:
        assert (trial.epoch, trial.attempt) == (2, 2)
        with trial:
            model = train(trial)
    np.testing.assert_array_equal(model.coef_, train(accuracies(5)).coef_)


ENSEMBLES = [
    RandomForestClassifier(11, random_state=3),
    RandomForestClassifier(5),  # its random state is that of the process
    ExtraTreesClassifier(10, random_state=0),
    GradientBoostingClassifier(n_estimators=10, subsample=0.5, random_state=0),
    HistGradientBoostingClassifier(max_iter=10, random_state=0),
    HistGradientBoostingClassifier(max_iter=10, categorical_features=[0], random_state=1),
    BaggingClassifier(n_estimators=7, random_state=0),
]


@pytest.mark.parametrize("ensemble", ENSEMBLES, ids=lambda e: f"{type(e).__name__}-{e.random_state}")
def test_an_ensemble_grows_to_its_full_size_and_resumes_exactly(ensemble):
    pytest.importorskip("skops", reason="skops is not installed")
    found = []
    for at in ((), (2, 3)):
        s = study(at=at)
        for trial in s:
            with trial:
                np.random.seed(0 if trial.attempt == 1 else 7)  # noqa: NPY002
                model = train(trial, ensemble)
        best = load(s.best.checkpoint)
        assert best.score(*HELD_OUT) == s.best.value
        found.append((s.trials[0].attempt, s.trials[0].values.tolist(), model.predict_proba(X)))
    (one, values, straight), (other, same, resumed) = found
    assert (one, other, len(values)) == (1, 3, 5)
    assert values == same
    np.testing.assert_array_equal(straight, resumed)
    if ensemble.random_state is not None:  # as trained at once
        whole = clone(ensemble).fit(X[:80], Y[:80])
        np.testing.assert_array_equal(straight, whole.predict_proba(X))


def test_an_ensemble_without_targets_grows_and_the_one_given_stays_as_it_is():
    forest, trial = IsolationForest(n_estimators=9, random_state=0), FakeTrial("score", 3, maximize=True)
    scored = {"validation": (X[80:], None), "scoring": lambda model, x, y: len(model.estimators_)}
    fit(trial, forest, X[:80], **scored)
    assert trial.values == [3, 6, 9]
    assert not hasattr(forest, "estimators_")
    assert forest.warm_start is False


@pytest.mark.parametrize("random_state", [3, None])
@pytest.mark.parametrize("contamination", ["auto", 0.1])
def test_a_forest_without_targets_pauses_and_resumes_exactly(random_state, contamination):
    pytest.importorskip("skops", reason="skops is not installed")

    def scored(model, x, y):
        return sklearn.metrics.roc_auc_score(HELD_OUT[1], model.score_samples(x))

    def grown():
        return IsolationForest(n_estimators=10, random_state=random_state, contamination=contamination, bootstrap=True)

    found = []
    for at in ((), (2, 3)):
        s = study(at=at, metric="score")
        for trial in s:
            with trial:
                np.random.seed(0 if trial.attempt == 1 else 7)  # noqa: NPY002
                model = fit(trial, grown(), X[:80], validation=(X[80:], None), scoring=scored)
        best = load(s.best.checkpoint)
        assert scored(best, X[80:], None) == s.best.value
        found.append(
            (s.trials[0].attempt, s.trials[0].values.tolist(), model.score_samples(X), model.decision_function(X))
        )
    (one, *straight), (other, *resumed) = found
    assert (one, other, len(straight[0])) == (1, 3, 5)
    for a, b in zip(straight, resumed, strict=True):
        np.testing.assert_array_equal(a, b)
    if random_state is not None:  # as trained at once
        np.testing.assert_array_equal(straight[1], grown().fit(X[:80]).score_samples(X))


def iterates():
    if not hasattr(LogisticRegression, "set_callbacks"):
        pytest.skip("sklearn.callback is of scikit-learn 1.9")
    return LogisticRegression(max_iter=40, tol=1e-12)


def test_each_iteration_of_a_solver_is_an_epoch():
    trial = accuracies(60)
    model = train(trial, iterates())
    whole = iterates().fit(X[:80], Y[:80])
    assert trial.epochs == [*range(1, int(whole.n_iter_[0]) + 1)]
    assert trial.values[-1] == whole.score(*HELD_OUT)
    np.testing.assert_array_equal(model.coef_, whole.coef_)


def test_a_solver_stops_early_and_at_the_end_of_a_full_training():
    trial = accuracies(60, {3: STOP})
    model = train(trial, iterates())
    assert trial.epochs == [1, 2, 3]
    assert trial.values[-1] == model.score(*HELD_OUT)
    short = accuracies(2)
    train(short, iterates())
    assert short.epochs == [1, 2]


def test_a_solver_does_not_pause_and_its_best_model_is_kept():
    pytest.importorskip("skops", reason="skops is not installed")
    s = study(at=(2,))
    with pytest.warns(HaltuneWarning, match="solver starts again instead of continuing from a state; it keeps"):
        for trial in s:
            with trial:
                train(trial, iterates())
    assert [t.attempt for t in s.trials] == [1]
    assert s.trials[0].epoch == 5
    assert load(s.best.checkpoint).score(*HELD_OUT) == s.best.value


@pytest.mark.usefixtures("handlers")
def test_a_solver_starts_again_after_ctrl_c_and_its_curve_too(tmp_path):
    def interrupting(model, x, y):
        seen.append(1)
        if len(seen) == 3:
            os.kill(os.getpid(), signal.SIGINT)
        return model.score(x, y)

    seen = []
    with pytest.raises(KeyboardInterrupt):
        for trial in study(tmp_path / "search.db", ()):
            with trial:
                train(trial, iterates(), scoring=interrupting)
    s, whole = study(tmp_path / "search.db", ()), accuracies(5)
    train(whole, iterates())
    with pytest.warns(HaltuneWarning, match=r"trains again from its start.*solver starts again"):
        for trial in s:
            with trial:
                train(trial, iterates())
    assert [(t.status, t.epochs.tolist()) for t in s.trials] == [("completed", [1, 2, 3, 4, 5])]
    assert s.trials[0].values.tolist() == whole.values


def test_a_second_training_of_a_trial_whose_solver_has_converged_starts_its_curve_again():
    s = study(at=(), epochs=60)
    with s.ask() as trial:
        train(trial, iterates())
        first = trial.epoch
        with pytest.warns(HaltuneWarning, match=r"trains again from its start"):
            train(trial, iterates())
    assert s.trials[0].epochs.tolist() == [*range(1, first + 1)]


def test_another_solver_is_refused():
    with pytest.raises(InvalidInput, match="LogisticRegression does not train in parts"):
        train(accuracies(), LogisticRegression(solver="saga"))


def test_a_second_fit_of_an_ended_trial_names_folds_and_no_callback():
    study = Study(Problem(Space({"alpha": Float(1e-4, 1e-2)}), Maximize("accuracy"), max_epochs=2), budget="1 trial")
    x, y = RNG.normal(size=(40, 3)), np.arange(40) % 2
    with study.ask() as trial:
        fit(trial, SGDClassifier(**trial.config), x[:20], y[:20], validation=(x[20:], y[20:]))
        trial.finish()
        with pytest.raises(NotSupported, match=r"folds\(k\): and give haltune the fold in place of the trial") as said:
            fit(trial, SGDClassifier(**trial.config), x[20:], y[20:], validation=(x[:20], y[:20]))
    assert "Callback" not in str(said.value)
