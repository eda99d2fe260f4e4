"""Features that act on a step, a batch, a loss or the weights, beside the strategy and the sync mode."""
