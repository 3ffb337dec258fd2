"""Sets of independent jobs: in this process, in several processes, or on a Ray cluster."""
