"""Ranks agree: rank 0 answers or raises for all, and nobody waits alone."""

import threading

import pytest

from haltune.callbacks.ranks import Agreement
from haltune.errors import InvalidInput, NoRoom


class Ranks:
    """Broadcasts between threads; a rank that waits alone breaks the barrier instead of hanging."""

    def __init__(self, size):
        self.size, self.sent = size, {}
        self.barrier = threading.Barrier(size, timeout=20)

    def run(self, work):
        """What `work(agreement)` returned or raised, by rank."""
        outcomes = [None] * self.size

        def one(rank):
            def broadcast(value, source):
                if rank == source:
                    self.sent["value"] = value
                self.barrier.wait()
                heard = self.sent["value"]
                self.barrier.wait()
                return heard

            try:
                outcomes[rank] = work(Agreement(rank, self.size, broadcast))
            except BaseException as error:
                outcomes[rank] = error

        threads = [threading.Thread(target=one, args=(rank,)) for rank in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        return outcomes


def test_only_rank_0_is_asked_and_all_hear_its_answer():
    asked = []

    def work(ranks):
        return ranks.decide(lambda: asked.append(ranks.rank) or ("stop", ranks.rank))

    assert Ranks(3).run(work) == [("stop", 0)] * 3
    assert asked == [0]


@pytest.mark.parametrize("error", [InvalidInput("no 'val_los'"), NoRoom("full"), KeyboardInterrupt("enough")])
def test_what_rank_0_raises_is_raised_on_all_of_the_same_type_and_in_the_same_words(error):
    def work(ranks):
        def question():
            raise error

        ranks.decide(question)

    outcomes = Ranks(3).run(work)
    assert [(type(e), str(e)) for e in outcomes] == [(type(error), str(error))] * 3
    assert outcomes[0] is error  # with its traceback


class Unsendable(Exception):
    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def test_an_error_that_cannot_be_sent_arrives_in_words():
    def work(ranks):
        def question():
            raise Unsendable("this", "that")

        ranks.decide(question)

    own, other = Ranks(2).run(work)
    assert isinstance(own, Unsendable)
    assert (type(other), str(other)) == (RuntimeError, "Unsendable: this and that")


def test_every_ranks_value_is_gathered_in_order():
    assert Ranks(3).run(lambda ranks: ranks.gather(10 * ranks.rank)) == [[0, 10, 20]] * 3


def test_a_process_by_itself_broadcasts_nothing():
    def broadcast(value, source):
        raise AssertionError("nobody is there")

    alone = Agreement(0, 1, broadcast)
    assert (alone.decide(lambda: 3), alone.gather("x")) == (3, ["x"])
    with pytest.raises(InvalidInput, match="mine"):
        alone.decide(lambda: (_ for _ in ()).throw(InvalidInput("mine")))
