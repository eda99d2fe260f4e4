"""The training task: models, data, the loss, and the samples that each replica takes."""
