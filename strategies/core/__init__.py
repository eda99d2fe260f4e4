"""The interfaces of strategies and sync modes, and what all of them share."""
