"""What launch.py does before the program runs; the standard library alone, as nothing else is there yet."""


class SetupError(Exception):
    """A failure that people can do something about, in one line."""
