"""Commands about the results of a run: show, compare and verify them."""

from redline.cli.results.verify import results_path
