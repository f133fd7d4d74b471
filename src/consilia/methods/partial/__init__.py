"""Sites mark different labels."""
