"""A user's mistake: one clear line that says what to do, exit code 2, no traceback."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Sequence

_PLACE_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EROFS, errno.EPERM,
    errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG,
)  # fmt: skip


class UserError(Exception):
    """Raised anywhere in the project; the entry scripts print its one line and exit with 2."""

    def __init__(self, message: str) -> None:
        super().__init__(" ".join(message.split()))


def require(good: bool, flag: str, value: object, wanted: str) -> None:
    """A setting that was given on the command line or in a YAML file must be `wanted`."""
    if not good:
        raise UserError(f"{flag} {value}: must be {wanted}")


def run_script(main: Callable[[Sequence[str]], object]) -> int:
    """Runs an entry script's `main` on the command line; the exit code."""
    from lexical.terminal import say  # of several processes that train together one speaks

    script = sys.argv[0].rsplit("/", 1)[-1]
    try:
        main(sys.argv[1:])
    except UserError as error:
        say(f"{script}: {error}")
        return 2
    except KeyboardInterrupt:
        say(f"{script}: interrupted; the same command continues from the steps that are done")
        return 130
    except BrokenPipeError:  # `| head` has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        if error.errno not in _PLACE_ERRORS:
            raise
        say(f"{script}: {error.strerror}: {error.filename or 'a file could not be written'}; mend that and repeat")
        return 1
    return 0
