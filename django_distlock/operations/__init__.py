"""What the person on call uses: commands, the admin page, the doctor, history, metrics."""
