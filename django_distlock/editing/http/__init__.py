"""What edit locks have to do with requests: visitors, permissions, the hidden field, the endpoints, the conflict page."""
