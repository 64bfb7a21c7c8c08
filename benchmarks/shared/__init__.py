"""What the demo and the comparison with PostgreSQL share."""
