#include "attention.cuh"

ATTENTIONS(Bf16, bf16)
