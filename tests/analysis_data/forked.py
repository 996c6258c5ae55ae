"""Work that may not come back, in a process of its own that has paid for the imports already."""

from __future__ import annotations

import os
from collections.abc import Callable


def forked(work: Callable[[], str]) -> tuple[int, str]:
    """The wait status of the process (0: it came to its end), and what the work returned or raised."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        said = "died"
        try:
            said = work()
        except BaseException as error:  # noqa: BLE001 - it is told to the parent
            said = f"{type(error).__name__}: {error}"
        finally:
            os.write(writing, said.encode())
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    return os.waitpid(process, 0)[1], said
