"""What the tables of leases for browsers share: the SQL of four databases, and attempts that wait for nobody."""
