"""Edit locks and requests: visitors, permissions, the hidden field, the endpoints, the page of a refused save."""
