"""Jobs on top of a run: what is found in answers, so that they can be scored and validated."""
