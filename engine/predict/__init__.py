"""How long a step would take, and what would fit: predicted from plans and measured machines."""
