#include "attention.cuh"

ATTENTIONS(F16, f16)
