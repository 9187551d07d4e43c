"""Memory that is used again."""

from __future__ import annotations

import numpy as np
import pytest

from distgnn.arrays import workspace as workspaces
from distgnn.arrays.workspace import Workspace
from distgnn.ledger import Ledger


def test_rooms_keep_their_memory_and_grow(backend):
    workspace = Workspace(backend)
    with workspace.rooms() as take:
        first, other = take("panel 0", (4, 6), np.float64), take("panel 1", (4, 6), np.float64)
    with workspace.rooms() as take:
        again = take("panel 0", (3, 5), np.float32)
        assert backend.address(again) == backend.address(first) != backend.address(other)
        assert (again.shape, again.dtype) == ((3, 5), np.float32)
        assert workspace.reserved == 2 * 4 * 6 * 8
        take("panel 0", (8, 6), np.float64)
        assert workspace.reserved == 3 * 4 * 6 * 8


def test_a_room_has_one_holder(backend):
    workspace = Workspace(backend)
    with workspace.rooms() as take, workspace.rooms() as other:
        take("panel", (3,), np.float32)
        take("panel", (2,), np.float32)
        other("sum", (3,), np.float32)
        with pytest.raises(RuntimeError, match="the room 'panel' of the workspace is in use"):
            other("panel", (3,), np.float32)
    with pytest.raises(ZeroDivisionError), workspace.rooms() as take:
        take("panel", (3,), np.float32)
        1 / 0
    with workspace.rooms() as take:
        take("panel", (3,), np.float32)


def test_retired_memory_is_not_lent_again(backend):
    workspace = Workspace(backend)
    with workspace.rooms() as take:
        room = take("panel", (8,), np.float32)
    lent, free = workspace.borrow((4,), np.float32), workspace.borrow((6,), np.float32)
    workspace.give_back(free)
    workspaces.retire_all()
    assert workspace.reserved == workspace.borrowed == 0
    workspace.give_back(lent)
    with workspace.rooms() as take:
        again = [take("panel", (8,), np.float32), *(workspace.borrow((4,), np.float32) for _ in range(2))]
    assert not {backend.address(x) for x in again} & {backend.address(x) for x in (room, lent, free)}


def test_borrowed_arrays_are_apart_until_given_back(backend):
    workspace = Workspace(backend)
    a, b = workspace.borrow((5, 3), np.float32), workspace.borrow((5, 3), np.float32)
    a[...], b[...] = 1, 2
    assert float(a.sum()) == 15 and float(b.sum()) == 30
    workspace.give_back(a)
    workspace.give_back(a)  # a second time changes nothing
    c, d = workspace.borrow((3, 5), np.float32), workspace.borrow((1, 1), np.float32)
    assert backend.address(c) == backend.address(a) != backend.address(d)


def test_the_smallest_that_is_large_enough_is_lent_and_too_small_ones_are_replaced(backend):
    workspace = Workspace(backend)
    small, large = workspace.borrow((10,), np.uint8), workspace.borrow((100,), np.uint8)
    workspace.give_back(large)
    workspace.give_back(small)
    assert backend.address(workspace.borrow((7,), np.uint8)) == backend.address(small)
    workspace.borrow((100,), np.uint8)
    assert workspace.borrowed == 110
    workspace.give_back(small)
    workspace.borrow((50,), np.uint8)
    assert workspace.borrowed == 150  # in place of the ten


def test_clear_keeps_what_is_lent(backend):
    workspace = Workspace(backend)
    with workspace.rooms() as take:
        take("panel", (8,), np.float32)
    lent = workspace.borrow((4,), np.float32)
    workspace.give_back(workspace.borrow((16,), np.float32))
    workspace.clear()
    assert workspace.reserved == workspace.borrowed == lent.nbytes
    workspace.give_back(lent)
    assert backend.address(workspace.borrow((4,), np.float32)) == backend.address(lent)


def test_forgotten_and_foreign_arrays_never_come_back(backend):
    workspace = Workspace(backend)
    a = workspace.borrow((6,), np.float32)
    workspace.forget(a)
    workspace.give_back(a)
    workspace.give_back(backend.empty((6,), np.float32))
    workspace.give_back(workspace.borrow((0, 4), np.float32))
    b = workspace.borrow((6,), np.float32)
    assert backend.address(a) != backend.address(b) and workspace.borrowed == b.nbytes


def test_what_is_lent_comes_back(backend) -> None:
    """After an error, too."""
    workspace = Workspace(backend)
    with workspace.lend((3, 4), np.float32) as first:
        assert first.shape == (3, 4)
    with pytest.raises(ZeroDivisionError), workspace.lend((12,), np.float32) as second:
        assert backend.address(second) == backend.address(first)
        1 / 0
    assert backend.address(workspace.borrow((12,), np.float32)) == backend.address(first)
    assert workspace.borrowed == 48


def test_what_is_lent_until_the_end_of_a_context_comes_back(backend):
    workspace = Workspace(backend)
    with pytest.raises(ZeroDivisionError), workspace.lending() as borrow:
        first, second = borrow((6,), np.float64), borrow((2, 3), np.float32)
        assert backend.address(first) != backend.address(second) and borrow((0, 3), np.int8).shape == (0, 3)
        1 / 0
    assert workspace.borrowed == 48 + 24
    again = {backend.address(workspace.borrow((size,), np.uint8)) for size in (24, 48)}
    assert again == {backend.address(first), backend.address(second)} and workspace.borrowed == 72


def test_what_was_noted_is_lent_again(backend):
    """In a pass that is placed by life times it stands for what was borrowed."""
    workspace = Workspace(backend)

    def product():
        with workspace.lend((8,), np.float32) as panel, workspace.lend((4,), np.float64):
            assert panel.shape == (8,)

    def a_pass(product):
        with workspace.repeated("pass"):
            wide = workspace.borrow((64,), np.uint8)
            product()
            workspace.give_back(wide)

    with workspace.noted() as notes:
        product()
    assert [note.size for note in notes] == [32, 32, 0, 0]
    found = []
    for again in (product, lambda: workspace.lend_again(notes)):
        workspace.clear()
        for _ in range(2):
            a_pass(again)
        found.append((workspace.borrowed, workspace._plans["pass"]))
    assert found[0] == found[1] and found[0][0] == 128


def test_what_is_borrowed_once_is_in_no_plan(backend):
    """A pass that borrows it all the same has it placed like what no pass has shown."""
    workspace = Workspace(backend)

    def a_pass(with_it):
        with workspace.repeated("pass"):
            wide = workspace.borrow((64,), np.uint8)
            if with_it:
                with workspace.once(), workspace.lend((1000,), np.uint8) as first:
                    assert backend.address(first) != backend.address(wide)
            workspace.give_back(wide)
            narrow = workspace.borrow((8,), np.uint8)
            workspace.give_back(narrow)

    for with_it, borrowed in ((True, 0), (False, 64), (False, 64), (True, 1064), (False, 0), (False, 64)):
        a_pass(with_it)
        workspace.clear() if with_it and borrowed == 0 else None
        assert workspace.borrowed == borrowed, (with_it, borrowed)


def test_the_ledger_holds_what_the_workspace_holds(backend):
    workspace = Workspace(backend, "activations")
    with Ledger() as ledger:
        with workspace.rooms() as take:
            take("panel", (8,), np.float64)
        first, second = workspace.borrow((10,), np.float32), workspace.borrow((20,), np.float32)
        workspace.give_back(first)
        workspace.give_back(second)
        workspace.borrow((15,), np.float32)  # of the second buffer
        workspace.borrow((40,), np.float32)  # in the place of the first
    assert (ledger.peak["panel"], ledger.peak["activations"]) == (64, 240)
    assert (workspace.borrowed, workspace.reserved) == (240, 304)
    with Ledger() as ledger:
        workspace.clear()  # nothing of the borrowed arrays is free
        with workspace.rooms() as take:
            take("panel", (1,), np.uint8)
    assert workspace.reserved == 241 and ledger.peak["panel"] == 64


def test_a_name_that_grows_lets_go_of_its_smaller_buffer(backend):
    workspace = Workspace(backend)
    with workspace.rooms() as take:
        small = take("panel", (4,), np.float32)
        assert take("panel", (2, 2), np.int32).shape == (2, 2) and workspace.reserved == 16
        large = take("panel", (5,), np.float32)
        assert workspace.reserved == 20 and backend.address(large) != backend.address(small)
        assert backend.address(take("panel", (4,), np.float32)) == backend.address(large)
    assert workspace.borrowed == 0  # rooms do not count as borrowed


def test_a_view_is_given_back_by_where_it_begins(backend):
    workspace = Workspace(backend)
    lent = workspace.borrow((6, 4), np.float32)
    workspace.give_back(lent[1:])  # begins elsewhere
    assert backend.address(workspace.borrow((6, 4), np.float32)) != backend.address(lent)
    workspace.give_back(lent[:2])
    assert backend.address(workspace.borrow((6, 4), np.float32)) == backend.address(lent)


def test_buffers_are_as_many_as_are_out_at_a_time(backend):
    """Layers of shrinking widths, twice: each finds the buffers of the last."""
    workspace = Workspace(backend)
    for _ in range(2):
        held = workspace.borrow((50, 16), np.float32)
        for width in (12, 7, 3):
            made = workspace.borrow((50, width), np.float32)
            workspace.give_back(held)
            held = made
        workspace.give_back(held)
    assert workspace.borrowed == workspace.reserved == (16 + 12) * 50 * 4
