"""Workers on other machines: how they get there, what they run in, and how items get to them."""
