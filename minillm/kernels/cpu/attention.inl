// The functions of attention.h, written once on top of simd_*.inl.

#include "attention_math.inl"
#include "attention_rows.inl"
#include "attention_decode.inl"
#include "attention_tiles.inl"

static const AttentionFunctions attention_functions = {
    rms_norm, rope,   gate,     widen,       narrow,
    fill_block, attend, read_row, attend_tile, QUERY_ROWS,
};
