"""What training costs: seconds, bytes and memory by closed forms, before anything runs."""
