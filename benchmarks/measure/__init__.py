"""How it is measured: interleaved timing, peak memory, differences from float64, the machine."""
