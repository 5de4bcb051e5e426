"""What the commands on checkpoints share."""

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator


@contextlib.contextmanager
def one_line_errors(program: str) -> Iterator[None]:
    """Ends the program, with exit status 1 and one line, where an error is raised that the user can
    act on."""
    try:
        with warnings.catch_warnings():
            # hydra's, about how fairseq keeps its settings
            warnings.simplefilter("ignore", UserWarning)
            yield
    except (ValueError, OSError) as error:
        sys.exit(f"{program}: {error}")


def check_new(target: str) -> None:
    """
    Raises:
        ValueError: the file that is to be written exists.
    """
    if os.path.exists(target):
        raise ValueError(f"{target} must not exist yet, but does")
