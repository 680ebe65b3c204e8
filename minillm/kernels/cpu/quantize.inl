// Activations to 8 bits: scale[b] = max |x| / 127 over block b of 32 values, code = round(x/scale).
// The vector part, `quantize_block`, is in panel_*.inl.

static void quantize(const Activations& x, int64_t first, int64_t last) {
  for (int64_t b = first; b < last; b++) {
    x.scales[b] = quantize_block(x.values + b * BLOCK, x.codes + b * BLOCK, x.sums + b);
  }
}
