// The CPU form of top_logits.hpp. Used by top_logits.cpp alone.
#pragma once

#include "worker/logits/top_logits.hpp"

namespace hedgerow::worker::cpu {

TopLogits top_logits(const at::Tensor& logits, int top_k);

}  // namespace hedgerow::worker::cpu
