"""Text to tree: lexer and parser. Knows no value but constants."""
