"""The isolated drivers: exec, java, qemu."""
