"""The admin's pages of held locks. Of the library they know its public names only."""
