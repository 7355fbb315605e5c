"""Regular expressions in linear time: syntax, automaton, and two ways to run it. Pure; imports no other package."""
