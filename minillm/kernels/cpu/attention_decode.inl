// Attention of one query per head, straight on the cache: decode. The heads of a group share keys,
// so each key is read, and made a vector of floats, once for several heads. Keys are taken 128 at
// a time (`Batch`): their scores, then the running softmax, then their values.

#include "attention_batch.inl"
#include "attention_numbers.inl"
#include "attention_codes.inl"
#ifdef MINILLM_INTEGERS
#include "attention_integers.inl"
#endif

static inline bool through_floats(const CacheForm& form, int64_t D) {
  return form.bits && (form.key_channels || D % WIDTH || form.value_channels % WIDTH);
}

// A batch of codes: in whole numbers where the variant has them and its form is theirs.
static void attend_codes_at(const HeadCache& head, int64_t place, Batch& batch, const float* q,
                            int64_t G, int64_t D, const Part& part) {
  const CacheForm& form = *head.form;
  const int64_t channels = form.value_channels, at = place * (D / channels);
  batch.keys = head.keys.codes + place * D * form.bits / 8;
  batch.values = head.values.codes + place * D * form.bits / 8;
  batch.key_scales = head.keys.scales + place / BLOCK * D;
  batch.key_minima = head.keys.minima + place / BLOCK * D;
  batch.scales = head.values.scales + at;
  batch.minima = head.values.minima + at;
#ifdef MINILLM_INTEGERS
  if (in_integers(place, channels, D)) {
    if (form.bits == 8) return attend_integer_batch<Codes8>(batch, q, G, D, part);
    return attend_integer_batch<Codes4>(batch, q, G, D, part);
  }
#endif
  if (form.bits == 8) return attend_code_batch<Codes8>(batch, q, G, D, channels, part);
  return attend_code_batch<Codes4>(batch, q, G, D, channels, part);
}

// A batch at `place`, all of it exact or all of it codes.
static void attend_batch(const HeadCache& head, int64_t place, Batch& batch, const float* q,
                         int64_t G, int64_t D, const Part& part) {
  const CacheForm& form = *head.form;
  if (place >= head.full) {
    const int64_t bytes = (place - head.full) * D * (form.numbers == Numbers::FLOAT32 ? 4 : 2);
    batch.keys = head.keys.exact + bytes;
    batch.values = head.values.exact + bytes;
    switch (form.numbers) {
      case Numbers::BFLOAT16: return attend_numbers<bfloat16>(batch, q, G, D, part);
      case Numbers::FLOAT16: return attend_numbers<float16>(batch, q, G, D, part);
      default: return attend_numbers<float>(batch, q, G, D, part);
    }
  }
  if (through_floats(form, D)) {
    // Forms that are rare, or narrower than a vector: through float32.
    float keys[BLOCK * MAX_HEAD], values[BLOCK * MAX_HEAD];
    for (int64_t i = 0; i < batch.count; i++) {
      read_row(head, true, place + i, D, keys + i * D);
      read_row(head, false, place + i, D, values + i * D);
    }
    batch.keys = reinterpret_cast<const uint8_t*>(keys);
    batch.values = reinterpret_cast<const uint8_t*>(values);
    return attend_numbers<float>(batch, q, G, D, part);
  }
  attend_codes_at(head, place, batch, q, G, D, part);
}

static void attend(const HeadCache& head, const Run* runs, int64_t num_runs, const float* q,
                   int64_t G, int64_t D, const Part& part) {
  for (int64_t g = 0; g < G; g++) {
    part.highest[g] = -INFINITY;
    part.total[g] = 0.0f;
  }
  for (int64_t i = 0; i < G * D; i++) part.mixed[i] = 0.0f;
  Batch batch;
  const int64_t most = through_floats(*head.form, D) ? BLOCK : BATCH;
  for (int64_t r = 0; r < num_runs; r++) {
    const int64_t end = runs[r].first + runs[r].count;
    for (int64_t place = runs[r].first; place < end; place += batch.count) {
      int64_t border = end;
      if (place < head.full) {
        border = least_of(place % BLOCK ? place + BLOCK - place % BLOCK : head.full, end);
      }
      batch.count = least_of(border - place, most);
      batch.size = (batch.count + BLOCK - 1) / BLOCK * BLOCK;
      attend_batch(head, place, batch, q, G, D, part);
    }
  }
}
