"""Lists the commands of `redline route`."""

COMMANDS = {"replay": ("replay", "Score every strategy on a recorded run.")}
HELP = """Compare strategies for balancing calls across endpoints.

    A run with --trace FILE records its calls. How would other strategies have handled them?

        redline route replay calls.trace
    """
