"""`redline route`: its commands."""

COMMANDS = {"replay": ("replay", "Score every strategy on a recorded run.")}
HELP = """Compare ways to balance calls over endpoints.

    A run with --trace FILE records its calls. What would other strategies have made of them?

        redline route replay calls.trace
    """
