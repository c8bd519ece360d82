"""Programs checked on a CPU, and the checker checked by programs with something wrong."""
