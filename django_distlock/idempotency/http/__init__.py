"""What HTTP brings and takes: requests, responses, forms, principals."""
