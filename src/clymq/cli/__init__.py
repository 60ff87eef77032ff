"""The command `clymq`: thin words around the library. Nothing here knows more than the library does."""
