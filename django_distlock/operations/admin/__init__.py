"""The admin's pages of held locks. They know the public names and what is in operations/."""
