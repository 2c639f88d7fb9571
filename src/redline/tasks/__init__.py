"""Jobs with a purpose: evaluate, tag and synthesize; and answers found in replies."""
