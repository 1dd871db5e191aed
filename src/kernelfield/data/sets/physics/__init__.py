"""Fields of physics and astronomy."""
