// The attention of one layer in a step, from queries, keys and values side by side to what the
// heads give: step_attention.cpp.
#pragma once

#include "step.h"
#include "step_buffers.h"
#include "team.h"

namespace minillm {

void attention(const Model& model, const Step& step, int64_t layer, const Buffers& at, Team& team);

}  // namespace minillm
