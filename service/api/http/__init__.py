"""Connections, bodies, representations and problems: all that HTTP asks for and no route decides."""
