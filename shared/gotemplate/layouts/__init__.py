"""Values as text: Go's formats of numbers and values, JSON, YAML, TOML, and layouts of time."""
