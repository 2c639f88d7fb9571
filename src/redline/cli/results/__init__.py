"""Commands on the results of a run: their contents, differences, completeness and repair."""

from redline.cli.results.verify import results_path
