"""A command that torchrun or accelerate has started in several processes: one of them speaks for all."""

from __future__ import annotations

import io
import signal
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from tl_geometry.arguments import processes_launched

if TYPE_CHECKING:
    from tl_geometry.analysis.processes import Processes

__all__ = ["taking_part"]


@contextmanager
def taking_part(check: Callable[[], None]) -> Iterator[Processes]:
    """The processes of a command, after a check by the first of them; the others print nothing.

    Where a launcher has started several, SIGTERM, with which it ends the others when one has died, is
    an interruption, so that checkpoints are written. Whatever comes while they are written is ignored:
    launchers repeat themselves, and kill in the end.
    """
    several = processes_launched() > 1
    if not several:
        check()  # at once, before the imports

    from tl_geometry.analysis.processes import joined

    with ExitStack() as stack:
        if several:
            stack.enter_context(_interrupted_by(signal.SIGTERM, signal.SIGINT))
        processes = stack.enter_context(joined(None if several else False))
        if several:
            with processes.in_step():
                if processes.first:
                    check()
        if not processes.first:
            stack.enter_context(processes.quiet())
            stack.enter_context(redirect_stdout(io.StringIO()))
            _silence_transformers()
        yield processes


@contextmanager
def _interrupted_by(*signals: signal.Signals) -> Iterator[None]:
    def interrupt(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001
        for each in signals:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    before = {each: signal.signal(each, interrupt) for each in signals}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _silence_transformers() -> None:
    """No bars while weights are read, and no warnings beside those of the first process."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
