"""Work that may not come back, in a process of its own that has paid for the imports already."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Callable, Sequence


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


def forked_together(works: Sequence[Callable[[], str]], seconds: float) -> list[tuple[int, str]]:
    """The same for several processes at a time, connected as a launcher would; killed after so many seconds.

    When one of them dies by a signal, the others go on: nobody ends them, as torchrun would.
    """
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank, work in enumerate(works):
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            numbers = {"RANK": rank, "LOCAL_RANK": rank, "MASTER_PORT": port}
            numbers |= {"WORLD_SIZE": len(works), "LOCAL_WORLD_SIZE": len(works)}
            os.environ |= {name: str(number) for name, number in numbers.items()}
            os.environ["MASTER_ADDR"] = "127.0.0.1"
            signal.alarm(round(seconds))
            said = "died"
            try:
                said = work()
            except BaseException as error:  # noqa: BLE001 - it is told to the parent
                said = f"{type(error).__name__}: {error}"
            finally:
                os.write(writing, said.encode())
                os._exit(0)
        os.close(writing)
        children.append((process, reading))
    found = []
    for process, reading in children:
        with os.fdopen(reading) as pipe:
            said = pipe.read()
        found.append((os.waitpid(process, 0)[1], said))
    return found
