"""Lists the commands of `redline keys`."""

COMMANDS = {
    "add": ("keys.add_key", "Make a key for a tenant, and print it once."),
    "list": ("keys.list_keys", "Show the keys, without their secrets."),
    "revoke": ("keys.revoke_key", "Refuse a key from now on."),
}
HELP = """Manage the API keys of `redline serve`.

    Several keys may belong to one tenant, whose limits they share:

        redline keys add team-a --expires 90d --note 'nightly jobs'
        redline keys list
        redline keys revoke k-7f3a9c1d

    The file keeps a hash of each key, never the key itself. `redline serve --keys keys.jsonl`
    requires a key for every call, and reads the file again when it changes.
    """
