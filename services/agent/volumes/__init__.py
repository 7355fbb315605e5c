"""Plugins that make host volumes by request, and what performs the effects of the role about them."""
