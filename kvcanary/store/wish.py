"""Whether a sweep is to stop, as an actor of a Ray cluster. Imports nothing: its process does not need the rest of the package."""


class StopWish:
    """A sweep tells it to stop, and its tasks ask.

    Ray interrupts a task by SIGINT, which nobody hears on a cluster that a script began in the background: it is ignored there.
    """

    def __init__(self) -> None:
        self._set = False

    def set(self) -> None:
        """The sweep is to stop."""
        self._set = True

    def is_set(self) -> bool:
        """Whether it is."""
        return self._set
