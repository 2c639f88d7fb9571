"""Commands on the results of a run: their contents, differences, completeness and repair."""
