"""Many sessions at once on a running dashboard: python tools/measure_sessions.py URL [SESSIONS] [SECONDS] [PID]

Each session opens Plan as a browser would, over Streamlit's own protocol, and then types one value after the other into KV slots, at the pace of
people: 3 to 6 seconds from one value to the next. Prints how long the server took from the value to the finished page, and the errors that pages
showed; with the server's PID also the processor's milliseconds per page, which other load changes less, and its memory minute by minute.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from contextlib import ExitStack
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import psutil
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from websockets.sync.client import ClientConnection, connect

FIELD = "field.pool_slot_count"
_ANSWER_S = 120.0
# Seconds from one value to the next: somebody who reads what a change did before making another.
HUMAN_PACE_S = (3.0, 6.0)
_MEMORY_EVERY_S = 60.0


@dataclass
class Figures:
    """Seconds of each validation and of each first page, and what went wrong."""

    validations_s: list[float] = field(default_factory=list)
    first_pages_s: list[float] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    def below_s(self, percent: int) -> float:
        """The time that so many of 100 validations stayed below."""
        if len(self.validations_s) < 2:
            return max(self.validations_s, default=0.0)
        return statistics.quantiles(self.validations_s, n=100, method="inclusive")[percent - 1]


class Session:
    """One browser's side of the protocol: asks for runs of the script and reads messages until a run is finished."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._open = ExitStack()
        address = f"ws://{parts.netloc}/_stcore/stream"
        self._socket: ClientConnection = self._open.enter_context(connect(address, max_size=None, open_timeout=60))
        self.exceptions: list[str] = []
        self.inputs: set[str] = set()
        self.html = ""

    def run(self, texts: dict[str, str]) -> float:
        """Run the script with these texts in these widgets; seconds until it is finished."""
        message = BackMsg()
        message.rerun_script.query_string = ""
        for key, text in texts.items():
            state = message.rerun_script.widget_states.widgets.add()
            state.id, state.string_value = key, text
        self.html = ""
        start = time.perf_counter()
        self._socket.send(message.SerializeToString())
        self._until_finished()
        return time.perf_counter() - start

    def close(self) -> None:
        """Close the connection, as a closed browser does."""
        self._open.close()

    def _until_finished(self) -> None:
        end = time.monotonic() + _ANSWER_S
        while time.monotonic() < end:
            answer = ForwardMsg()
            answer.ParseFromString(self._socket.recv(timeout=_ANSWER_S))
            kind = answer.WhichOneof("type")
            if kind == "script_finished" and answer.script_finished != ForwardMsg.FINISHED_EARLY_FOR_RERUN:
                return
            if kind == "delta" and answer.delta.HasField("new_element"):
                element = answer.delta.new_element
                if element.HasField("exception"):
                    self.exceptions.append(element.exception.message)
                if element.HasField("text_input"):
                    self.inputs.add(element.text_input.id)
                if element.HasField("html"):
                    self.html += element.html.body
        raise TimeoutError(f"no finished page after {_ANSWER_S:g} s")


def measure(url: str, sessions: int, seconds: float, pace_s: tuple[float, float] = HUMAN_PACE_S) -> Figures:
    """Type into `sessions` pages at once for so long; from one value of a page to its next lies a time drawn evenly from `pace_s`."""
    figures, lock = Figures(), threading.Lock()

    def use(number: int) -> None:
        pause = random.Random(number)
        try:
            session = Session(url)
            first = session.run({})
            [widget] = [key for key in session.inputs if key.endswith(FIELD)]
            taken, end, value = [], time.monotonic() + seconds, 1000 * number
            # Nobody starts in step with the others.
            time.sleep(pause.uniform(0.0, pace_s[1]))
            while time.monotonic() < end:
                value += 1
                taken.append(session.run({widget: str(value)}))
                time.sleep(max(0.0, pause.uniform(*pace_s) - taken[-1]))
            session.close()
            with lock:
                figures.first_pages_s.append(first)
                figures.validations_s += taken
                figures.errors += session.exceptions
        except (OSError, TimeoutError, ValueError) as error:
            with lock:
                figures.errors.append(f"session {number}: {error!r}")

    threads = [threading.Thread(target=use, args=(number,)) for number in range(1, sessions + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return figures


def watch_memory(server: psutil.Process, seen: list[int], done: threading.Event) -> None:
    """Add the server's resident bytes to `seen` now and once a minute until `done`."""
    while True:
        seen.append(server.memory_info().rss)
        if done.wait(_MEMORY_EVERY_S):
            return


def main() -> int:
    """Measure and print; exit code 1 when a page showed an error."""
    url = sys.argv[1]
    sessions, seconds = int(sys.argv[2]) if len(sys.argv) > 2 else 20, float(sys.argv[3]) if len(sys.argv) > 3 else 300.0
    server = psutil.Process(int(sys.argv[4])) if len(sys.argv) > 4 else None
    memory: list[int] = []
    done = threading.Event()
    if server:
        measure(url, 1, 2.0, (0.2, 0.2))
        used = server.cpu_times()
        threading.Thread(target=watch_memory, args=(server, memory, done)).start()
    figures = measure(url, sessions, seconds)
    done.set()
    if server and figures.validations_s:
        spent = sum(server.cpu_times()[:2]) - sum(used[:2])
        minutes = " ".join(str(size >> 20) for size in [*memory, server.memory_info().rss])
        print(
            f"server: {spent / (len(figures.validations_s) + sessions) * 1000:.0f} ms of processor per page; MiB by minute: {minutes}; "
            f"load of the machine {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} processors"
        )
    if figures.validations_s:
        times = ", ".join(f"p{percent} {figures.below_s(percent) * 1000:.0f} ms" for percent in (50, 95, 99))
        print(
            f"{sessions} sessions for {seconds:g} s, a value every {HUMAN_PACE_S[0]:g} to {HUMAN_PACE_S[1]:g} s each: "
            f"{len(figures.validations_s)} validations, {times}, first page {statistics.median(figures.first_pages_s) * 1000:.0f} ms"
        )
    print(f"{len(figures.errors)} errors", *figures.errors[:5], sep="\n")
    return 1 if figures.errors else 0


if __name__ == "__main__":
    sys.exit(main())
