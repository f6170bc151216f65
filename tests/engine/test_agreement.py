"""What one rank knows at a pause, all know, and of one kind."""

from __future__ import annotations

import pytest
from tests.support.engines import ticket
from tests.support.ranks import together

from omnireel.engine.agreement import agreed
from omnireel.errors import Cancelled, DeadlineExceeded

CANCELLED, LATE = Cancelled("r", "there"), DeadlineExceeded("r", 2.0, "there")


@pytest.mark.parametrize(
    ("problems", "kind"),
    [
        ((None, None), type(None)),
        ((CANCELLED, None), Cancelled),
        ((None, CANCELLED), Cancelled),
        ((None, LATE), DeadlineExceeded),
        ((LATE, LATE), DeadlineExceeded),
        ((LATE, CANCELLED), DeadlineExceeded),
    ],
)
def test_all_ranks_end_for_the_same_reason(problems, kind):
    mine = ticket(timeout_seconds=2.0)
    found = together(2, lambda ranks: agreed(ranks, mine, problems[ranks.rank], "before step 2 of 4"))
    assert [type(problem) for problem in found] == [kind, kind]
    for problem in found:
        assert problem is None or "before step 2 of 4" in problem.message
