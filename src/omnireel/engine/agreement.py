"""How ranks that run the same request end it at the same place: what one knows at a pause, all know."""

from __future__ import annotations

from typing import TYPE_CHECKING

from omnireel.errors import Cancelled, DeadlineExceeded, RankLost

if TYPE_CHECKING:
    from omnireel.engine.ticket import Ticket
    from omnireel.errors import OmniReelError
    from omnireel.parallel import Ranks

_GOES_ON, _CANCELLED, _LATE, _FAILED = range(4)


def agreed(ranks: Ranks, ticket: Ticket, problem: OmniReelError | None, where: str) -> OmniReelError | None:
    """Why the request must not go on on any rank; the same kind of reason on all. Clocks and cancels reach them at different times.

    Raises:
        RankLost: a rank is gone.
    """
    words = ranks.agree(_CANCELLED if isinstance(problem, Cancelled) else _GOES_ON if problem is None else _LATE)
    word = max((word for word in words if word != _GOES_ON), default=_GOES_ON)
    if word == _GOES_ON:
        return None
    if word == _FAILED:
        return RankLost(ranks.rank, "heard that all go on")
    if word == _CANCELLED:
        return Cancelled(ticket.request_id, where)
    return DeadlineExceeded(ticket.request_id, ticket.timeout_seconds or 0.0, where)


def tell_failed(ranks: Ranks) -> None:
    """What a rank says that failed where nothing is exchanged, and so stays with the others: they hear it at their next pause."""
    try:
        ranks.agree(_FAILED)
    except RankLost:
        ranks.leave()
