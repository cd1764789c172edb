"""What the argument parser of an engine says before it ends: a flag that the release does not know, a value that it refuses."""

from __future__ import annotations

import re

from kvcanary.importers.error_entries import Entry

REFUSED = (
    Entry(
        label="arguments_not_recognized",
        pattern=re.compile(r"error: unrecognized arguments: (?P<words>\S[^\n]{0,300})"),
        explanation="This release of the engine does not know {words}, so it printed its usage and ended.",
        causes=(
            "The release is older or newer than the flag: SGLang has the --kv-canary flags from 0.5.13 on.",
            "The flag is misspelled, or belongs to another engine.",
        ),
    ),
    Entry(
        label="argument_refused",
        pattern=re.compile(r"error: argument (?P<flag>--?[A-Za-z][\w/,. -]{0,200}): (?P<problem>[^\n]{1,300})"),
        explanation="The engine refuses what {flag} was given, so it printed its usage and ended: {problem}",
        causes=("The value is none of those that this release takes.", "A variable of the command came out empty, or with a blank in it."),
    ),
)
