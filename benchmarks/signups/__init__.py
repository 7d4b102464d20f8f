"""The whole job: sign-ups per second through real servers, with each way to keep an address from being taken twice."""
