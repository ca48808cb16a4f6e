"""Why a run failed, or what room it has: the verdict, its sentence, leaks, and the same on a smaller card."""
