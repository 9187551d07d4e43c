"""Steps of a program, and turns of a loop that stand for all."""

from fractions import Fraction

from distgnn.ledger import Ledger, charge, held, sent, waited
from distgnn.plan.dry.recorder import Recorder, repeated


def test_a_repeated_turn_counts_for_all_of_a_loop():
    def turn():
        charge("spmm", "spmm", flops=7, touched=5, shape=(2, 3, 4, 5))
        charge("comm", "reduce", "rows", "sums", words=Fraction(1, 3), itemsize=4, messages=2)
        held("room", 30)
        held("room", -30)

    with Recorder() as often, Ledger() as whole:
        for _ in range(6):
            turn()
    with Recorder() as once, Ledger() as outer:
        for times in (1, 5):
            with repeated(times), Ledger() as inner:
                turn()
    assert (inner.flops, inner.words) == (7, 0)
    assert once.entries() == outer.entries() == often.entries() == whole.entries()
    assert once.steps == often.steps and len(once.steps) == 12
    assert once.touched == often.touched and once.peak["room"] == often.peak["room"] == 30


def test_messages_sent_one_after_the_other_are_one_step():
    with Recorder() as book:
        for nbytes in (4, 8):
            sent("alltoallv", "rows", "H", nbytes)
        waited("alltoallv", "rows", "H")
        sent("alltoallv", "rows", "H", 1)
        sent("alltoallv", "rows", "sums", 2)
    found = [(step.phase, step.matrix, step.nbytes, step.messages) for step in book.steps]
    assert found == [("sent", "H", 12, 2), ("wait", "H", -1, 0), ("sent", "H", 1, 1), ("sent", "sums", 2, 1)]
    assert book.words == book.messages == 0 and not book.entries()
