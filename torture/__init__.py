"""The standing attack: kills, write faults, damaged files and damaged images. `make torture`."""
