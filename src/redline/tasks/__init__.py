"""The tasks of jobs: evaluation, tagging and synthesis. Also finds the answers in replies."""
