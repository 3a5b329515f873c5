"""What a program outside the nodes asks them, and how it puts the answers together."""
