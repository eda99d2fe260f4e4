"""Support for strategies with another library's engine: memory, compiled code and settings of DeepSpeed and FSDP."""
