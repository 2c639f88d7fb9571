"""Commands about the results of a run: what is in them, how two differ, whether they are whole."""

from redline.cli.results.verify import results_path
