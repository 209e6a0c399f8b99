// Precompiled header of the targets that use LibTorch: <torch/torch.h> costs 15 to 28 s a file,
// ATen alone much less.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
