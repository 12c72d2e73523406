"""The served page: access, updates after a position, and buttons."""

import asyncio
import json
import re
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from haltune import Budget, Float, Maximize, Problem, Space, Study
from haltune.log.events import Enqueued, Held
from haltune.policies import RandomSearch
from haltune.report.metric_model import MetricModel
from haltune.report.watch.app import ACTIONS, Board, Location, application
from haltune.report.watch.watched import Watched, patch
from haltune.store.open import open_store
from haltune.study.view import follow_study

TOKEN = "a-token-that-nobody-guesses"
PROBLEM = Problem(Space({"lr": Float(0.01, 1.0)}), Maximize("acc", (0, 1)), 4)


def searched(path, name="study", trials=3):
    budget = Budget(trials=trials)
    return Study(PROBLEM, RandomSearch(), f"sqlite:///{path}", name, seed=0, budget=budget, verbose=0)


def train(study, epochs=4, value=0.5):
    """One trial, to its end."""
    with study.ask() as trial:
        for epoch in range(1, epochs + 1):
            trial.report(value + epoch / 100, seconds=1.0)
    return trial.id


def place(path, name="study"):
    return Location(open_store(str(path), reading=True), name, str(path))


def ask(app, path, method="GET", host="127.0.0.1:8765", headers=(), body=b""):
    """One request, without a network: (status, headers, body)."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    path, _, query = path.partition("?")
    named = [(b"host", host.encode()), *((k.lower().encode(), v.encode()) for k, v in headers)]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method, "scheme": "http",
        "path": path, "raw_path": path.encode(), "query_string": query.encode(), "headers": named,
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 8765), "root_path": "",
    }  # fmt: skip
    asyncio.run(app(scope, receive, send))
    told = {k.decode(): v.decode() for k, v in sent[0]["headers"]}
    return sent[0]["status"], told, b"".join(m.get("body", b"") for m in sent[1:]).decode()


@pytest.fixture
def served(tmp_path):
    """The application over one study with one trial, and the study."""
    study = searched(tmp_path / "a.db")
    train(study)
    return application(Board(lambda: [place(tmp_path / "a.db")]), TOKEN), study


def test_the_page_is_the_one_that_is_written_to_a_file_and_knows_its_moment(served):
    status, _, text = ask(served[0], f"/{TOKEN}/0/")
    assert status == 200
    assert re.search(r'name="haltune-mark" content="[0-9a-f]{8}:1"', text)
    assert '<tr data-trial="trial-0"' in text
    assert "<style>" not in text  # a strict policy allows none
    assert not re.search(r"<script>|\son\w+=|style=", text)


def test_nothing_is_shown_without_the_token(served):
    app = served[0]
    for path in (
        "/",
        "/0/",
        "/0/output/0",
        "/wrong/0/output/0",
        "//0/",
        "/wrong/",
        f"/{TOKEN}x/",
        f"/{TOKEN[:-1]}/0/",
        "/../",
        f"/x/{TOKEN}/",
        "/\u00e9/",
    ):
        status, _, text = ask(app, path)
        assert status == 404, path
        assert "acc" not in text


def test_it_answers_to_its_own_names_and_to_addresses_in_numbers_alone(served):
    """A foreign name that points at this machine gets no page."""
    ours = ("localhost:8765", "127.0.0.1:8765", "[::1]:8765", "[::1]", "192.168.1.7:80", "LOCALHOST")
    foreign = (
        "evil.example", "evil.example:8765", "127.0.0.1.evil.example:8765", "", "localhost.evil",
        "127.0.0.1:8765, evil.example", "localhost:evil", "localhost:",
    )  # fmt: skip
    assert {ask(served[0], f"/{TOKEN}/0/", host=host)[0] for host in ours} == {200}
    assert {ask(served[0], f"/{TOKEN}/0/", host=host)[0] for host in foreign} == {421}


def test_a_ticket_leads_to_the_page_once(served):
    """All users of a machine see a browser's arguments; the token is not among them."""
    app, ticket = served[0], served[0].ticket()
    assert ask(app, f"/{ticket}/0/", host="evil.example")[0] == 421
    assert ask(app, f"/{ticket}/0/", "HEAD")[0] == 404
    assert ask(app, f"/{ticket}/0/stop", "POST", headers=[("X-Haltune-Token", ticket)])[0] == 404
    status, told, _ = ask(app, f"/{ticket}/0/")
    assert (status, told["location"], told["referrer-policy"]) == (303, f"/{TOKEN}/0/", "no-referrer")
    assert ask(app, f"/{ticket}/0/")[0] == 404
    assert ask(app, told["location"])[0] == 200


OWN = ("X-Haltune-Token", TOKEN)


def test_only_a_post_by_the_page_itself_acts(served):
    app, study = served
    origins = ("http://evil.example", "null", "https://127.0.0.1:8765")
    for headers in ((), [("X-Haltune-Token", "wrong")], *([OWN, ("Origin", origin)] for origin in origins)):
        assert ask(app, f"/{TOKEN}/0/stop", "POST", headers=headers)[0] == 403
    for method in ("PUT", "DELETE", "OPTIONS", "PATCH", "GET"):
        assert ask(app, f"/{TOKEN}/0/stop", method, headers=[OWN])[0] == 405
    study.sync()
    assert study.history.held is None


def test_every_answer_forbids_what_a_page_does_not_need(served):
    app, _ = served
    for path in (f"/{TOKEN}/", f"/{TOKEN}/0/", f"/{TOKEN}/page.js", f"/{TOKEN}/0/changes", "/nothing", f"/{TOKEN}/99/"):
        _, headers, _ = ask(app, path)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert headers["x-frame-options"] == "DENY"
        assert headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in headers


def told(watched, mark=""):
    """Return the update after a mark."""
    return json.loads(watched.since(mark)[1])


def models_made(watched):
    """Wait for the models that are being made."""
    if watched._thread is not None:
        watched._thread.join()


def caught_up(watched, study):
    """Read updates until all of the log is shown, including models."""
    watched.look()
    models_made(watched)
    watched.look()
    models_made(watched)
    assert watched.study.history.position == study.history.position


def applied(old, patch):
    """A value with a patch, as pages apply it."""
    if isinstance(patch, list):
        return patch[0] if len(patch) < 3 else [*old[: patch[0]], *patch[2], *old[patch[0] + patch[1] :]]
    if not patch:
        return old
    found = dict(enumerate(old)) if isinstance(old, list) else dict(old)
    for key, inner in patch.items():
        key = int(key) if isinstance(old, list) else key
        if inner == []:
            del found[key]
        else:
            found[key] = applied(found.get(key), inner)
    return list(found.values()) if isinstance(old, list) else found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(0, 3) | st.floats(0.0, 1.0) | st.sampled_from(["a", "b"]),
    lambda inner: st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4),
)


@given(JSON, JSON)
def test_a_patch_turns_any_value_into_any_other(old, new):
    assert applied(old, json.loads(json.dumps(patch(old, new)))) == new


def test_a_report_is_sent_as_its_changes_and_also_to_pages_that_are_behind(tmp_path):
    study = searched(tmp_path / "a.db", trials=60)
    for n in range(50):
        train(study, value=n / 100)
    watched = Watched(follow_study(str(tmp_path / "a.db")), rests=False)
    whole, marks, shown = told(watched), [watched.mark], told(watched)["items"]
    with study.ask() as trial:
        for epoch in range(1, 4):
            trial.report(0.1 * epoch, seconds=1.0)
            watched.look()
            marks.append(watched.mark)
        now = told(watched)["items"]
        for mark in marks[:-1]:
            news = told(watched, mark)
            assert {"figure/timeline", "figure/progress"} <= set(news["patches"])
            assert len(json.dumps(news)) < 0.1 * len(json.dumps(whole))
        first = told(watched, marks[0])
        patched = {key: applied(shown[key], patch) for key, patch in first["patches"].items()}
        assert {key: v for key, v in (shown | first["items"] | patched).items() if v is not None} == now


def test_a_page_that_gets_the_changes_equals_a_new_one(tmp_path):
    study = searched(tmp_path / "a.db", trials=16)
    train(study)
    watched = Watched(follow_study(str(tmp_path / "a.db")), rests=False)
    shown, mark = told(watched)["items"], watched.mark
    for n in range(12):
        train(study, epochs=1 + n % 4, value=0.07 * (5 * n % 12))
        caught_up(watched, study)
        news = told(watched, mark)
        assert news["after"] == mark
        patched = {key: applied(shown[key], patch) for key, patch in news["patches"].items()}
        shown, mark = shown | news["items"] | patched, news["mark"]
    anew = Watched(follow_study(str(tmp_path / "a.db")))
    assert shown == told(anew)["items"]


def test_a_mark_of_another_server_or_of_none_gets_the_whole_page(tmp_path):
    train(searched(tmp_path / "a.db"))
    watched, other = (Watched(follow_study(str(tmp_path / "a.db"))) for _ in range(2))
    for mark in (other.mark, "", "x", f"{watched.mark}0", watched.mark.replace("1", "-1"), ":1", "9" * 5000):
        assert told(watched, mark)["after"] is None
        assert "curve/trial-0" in told(watched, mark)["items"]


def test_models_that_take_long_hold_up_nothing_else(tmp_path, monkeypatch):
    study = searched(tmp_path / "a.db", trials=16)
    for n in range(6):
        train(study, value=n / 10)
    watched = Watched(follow_study(str(tmp_path / "a.db")), rests=False)
    goes_on, of = threading.Event(), MetricModel.of
    monkeypatch.setattr(MetricModel, "of", lambda history: goes_on.wait(60) and of(history))
    mark = watched.mark
    train(study, value=0.9)
    watched.look()
    assert "figure/timeline" in told(watched, mark)["patches"]
    assert "figure/importance" not in told(watched, mark)["items"] | told(watched, mark)["patches"]
    goes_on.set()
    models_made(watched)
    assert "figure/importance" in told(watched, mark)["items"] | told(watched, mark)["patches"]


def test_stop_resume_and_enqueue_are_events_of_the_log(served, tmp_path):
    app, study = served

    def post(action, body=b""):
        status, _, text = ask(
            app, f"/{TOKEN}/0/{action}", "POST", headers=[OWN, ("Origin", "http://127.0.0.1:8765")], body=body
        )
        return status, json.loads(text)

    assert post("stop")[0] == 200
    study.sync()
    assert "stopped on its page" in study.history.held
    assert "stopped for now" in ask(app, f"/{TOKEN}/0/")[2]
    assert post("resume") == (200, {"said": "The search continues; if no process trains, start its program again"})
    assert post("enqueue", b'{"config": {"lr": 0.125}}') == (200, {"said": "The configuration waits for training"})
    known = {"said": "The configuration has started already, or waits"}
    assert post("enqueue", b'{"config": {"lr": 0.125}}') == (200, known)
    study.sync()
    assert [type(e) for e in study.events()][-3:] == [Held, Held, Enqueued]
    assert study.ask().config["lr"] == 0.125


def test_one_run_is_ended_paused_and_let_continue_and_the_budget_raised(served):
    app, study = served

    def post(action, **body):
        status, _, text = ask(app, f"/{TOKEN}/0/{action}", "POST", headers=[OWN], body=json.dumps(body).encode())
        return status, json.loads(text)

    trial = study.ask()
    assert post("pause", trial=1) == (200, {"said": "Trial 1 pauses at its next report, until you choose Continue"})
    assert post("continue", trial=1) == (200, {"said": "Trial 1 continues"})
    assert post("end", trial=1) == (200, {"said": "Trial 1 ends at its next report"})
    assert trial.report(0.5, seconds=1.0).reason == "stopped by you, on the search's page"
    trial.finish()
    assert post("end", trial=1) == (400, {"error": "trial 1 has ended (stopped), so it cannot stop"})
    assert post("extend", limits={"trials": 7}) == (
        200,
        {"said": "The budget is trials 7 now; no process trains now: start its program again"},
    )
    study.sync()
    assert study.history.wishes.extended(study.budget).trials == 7


@pytest.mark.parametrize(
    ("action", "body", "status", "word"),
    [
        ("end", b"{}", 400, "has no trial"),
        ("end", b'{"trial": 99}', 400, "there is no trial 99"),
        ("extend", b'{"limits": {"trials": 1}}', 400, "no limit is raised"),
        ("extend", b'{"limits": 5}', 400, "limits of the budget"),
        ("enqueue", b'{"config": {"lr": 7}}', 400, "lr"),
        ("note", b'{"trial": 0}', 400, "no text"),
        ("note", b'{"trial": 99, "text": "x"}', 400, "there is no trial 99"),
        ("enqueue", b"[" * 90_000, 400, "not a JSON object"),
    ],
)
def test_what_cannot_be_done_is_answered_in_words(served, action, body, status, word):
    found = ask(served[0], f"/{TOKEN}/0/{action}", "POST", headers=[OWN], body=body)
    assert found[0] == status
    assert word in found[2]


def test_there_is_nothing_else_to_do(served):
    assert ask(served[0], f"/{TOKEN}/0/delete", "POST", headers=[OWN])[0] == 404
    assert ask(served[0], f"/{TOKEN}/7/stop", "POST", headers=[OWN])[0] == 404
    for number in ("7", "-1", "9" * 50, "\u0663"):
        assert ask(served[0], f"/{TOKEN}/{number}/")[0] == 404
    assert set(ACTIONS) == {"stop", "resume", "enqueue", "end", "pause", "continue", "extend", "note"}


def test_several_studies_and_those_that_start_later_stand_in_one_list(tmp_path):
    evil = "<img src=x onerror=alert(1)>"
    names = ["first"]
    train(searched(tmp_path / "a.db", "first"))
    app = application(Board(lambda: [place(tmp_path / "a.db", name) for name in names]), TOKEN)
    assert "first" in ask(app, f"/{TOKEN}/")[2]
    train(searched(tmp_path / "a.db", evil))
    names.append(evil)
    text = ask(app, f"/{TOKEN}/")[2]
    assert "<img" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;" in text
    assert "acc 0.54" in text
    assert ask(app, f"/{TOKEN}/1/")[0] == 200


def test_studies_with_the_same_goal_are_compared_on_a_page(tmp_path):
    names = ["first", "second"]
    for name in names:
        train(searched(tmp_path / "a.db", name))
    space, budget = {"lr": Float(0.01, 1.0)}, Budget(trials=2)
    other = Study(space, "loss", tmp_path / "a.db", "other", max_epochs=4, budget=budget, verbose=0)
    other.ask().report(0.5)
    app = application(Board(lambda: [place(tmp_path / "a.db", name) for name in (*names, "other")]), TOKEN)
    listed = ask(app, f"/{TOKEN}/")[2]
    assert re.findall(r"<th>(.*?)</th>", listed) == ["study", "best", "state", "store"]
    assert re.findall(r'href="(compare.*?)">(.*?)<', listed) == [("compare?of=0,1", "Compare 2 studies: highest acc")]
    status, _, text = ask(app, f"/{TOKEN}/compare?of=0,1")
    assert status == 200
    assert 'href="page.css"' in text
    assert 'src="page.js"' in text
    assert re.findall(r"<h2>(.*?)</h2>", text) == ["Studies", "Best configurations"]
    assert not re.search(r"<script>|<style>|\son\w+=|style=", text)  # a strict policy allows none
    for query, word in (("0,2", "different goals"), ("0,0", "two or more"), ("7", "two or more"), ("x", "two or more")):
        status, _, text = ask(app, f"/{TOKEN}/compare?of={query}")
        assert (status, word in text) == (400, True)


def test_a_study_that_cannot_be_read_is_said_and_the_others_stay(tmp_path):
    train(searched(tmp_path / "a.db"))

    board = Board(
        lambda: [place(tmp_path / "a.db"), Location(open_store(str(tmp_path / "a.db"), reading=True), "none", "x")]
    )
    app = application(board, TOKEN)
    text = ask(app, f"/{TOKEN}/")[2]
    assert "acc 0.54" in text
    assert "there is no study" in text
    assert ask(app, f"/{TOKEN}/1/")[0] == 503
