"""The tasks that a job can do: evaluation, tagging and synthesis; and answers in replies."""
