"""What is trained: models, data, the loss, and which samples a replica takes."""
