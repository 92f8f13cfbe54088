"""Scripts that run, tune and report comparisons; run them from the root of the checkout."""
