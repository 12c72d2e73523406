"""SortedKeys and Sparse against a sorted list and a dict; old versions stay as they were."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from examples import many
from haltune.policies.hyperband.persistent import SortedKeys, Sparse

keys = st.tuples(st.integers(-5, 5).map(float), st.integers(0, 400))


@settings(max_examples=many(60), deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(["add", "add", "add", "drop", "drop missing"]), keys), max_size=300
    ),
    asked=keys,
)
def test_ranked_is_a_sorted_list_of_which_every_version_stays(
    steps: list[tuple[str, tuple[float, int]]], asked: tuple[float, int]
) -> None:
    ranked, plain = SortedKeys(), []
    versions = []
    for action, key in steps:
        if action == "add" and key not in plain:
            ranked, plain = ranked.add(key), sorted([*plain, key])
        elif action == "drop" and plain:
            gone = plain[hash(key) % len(plain)]
            ranked, plain = ranked.drop(gone), [k for k in plain if k != gone]
        elif action == "drop missing" and key not in plain:
            assert ranked.drop(key) is ranked
        versions.append((ranked, plain))
    for version, expected in versions[:: max(1, len(versions) // 20)]:
        assert list(version.best(10**6)) == expected
        assert list(version.best(3)) == expected[:3]
        assert version.size == len(expected)
        assert version.rank(asked) == sum(k < asked for k in expected)


@settings(max_examples=many(60), deadline=None)
@given(steps=st.lists(st.tuples(st.booleans(), st.integers(0, 700), st.integers()), max_size=200))
def test_sparse_is_a_dict_of_which_every_version_stays(steps: list[tuple[bool, int, int]]) -> None:
    sparse: Sparse[int] = Sparse()
    plain: dict[int, int] = {}
    versions = []
    for put, id, value in steps:
        if put:
            sparse, plain = sparse.put(id, value), {**plain, id: value}
        else:
            sparse, plain = sparse.drop(id), {k: v for k, v in plain.items() if k != id}
        versions.append((sparse, plain))
    for version, expected in versions[:: max(1, len(versions) // 20)]:
        assert sorted(version) == sorted(expected)
        assert version.size == len(expected)
        assert all(version.get(id) == expected.get(id) for id in range(760))


def test_an_insertion_among_ten_thousand_copies_one_chunk() -> None:
    ranked = SortedKeys()
    for n in range(10_000):
        ranked = ranked.add((float(n * 7919 % 10_007), n))
    after = ranked.add((0.5, 10**6))
    shared = {id(c) for c in ranked.chunks} & {id(c) for c in after.chunks}
    assert len(ranked.chunks) - len(shared) <= 1
    assert max(map(len, ranked.chunks)) <= 64
