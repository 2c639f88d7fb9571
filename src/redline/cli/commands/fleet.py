"""Lists the commands of `redline fleet`."""

COMMANDS = {
    "up": ("fleet_up", "Start a fleet, and serve it behind one URL."),
    "status": ("fleet_status", "Show the replicas of a running fleet."),
}
HELP = """Serve a model with replicas that scale with the load.

    A file sets the command that starts a replica, and how many replicas there may be:

        redline fleet up fleet.toml
        redline fleet status fleet.toml
    """
