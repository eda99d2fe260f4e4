"""What serves strategies whose engine is not ours: what DeepSpeed and FSDP hold, compile and are configured with."""
