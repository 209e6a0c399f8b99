// MKL's vector functions (at::exp, sqrt, log and the like on contiguous fp32 and fp64) choose their
// code at a process's first call of each. Two threads that make that call at once may compute a
// chunk of it with a low-accuracy version, thousands of units in the last place off, and never
// again (pytorch/pytorch issue 188792; MKL 2024.2, which LibTorch 2.11 has): bytes that differ from
// run to run.
#pragma once

namespace hedgerow::kernels {

// Makes the first calls, on one element each and so by one thread. Once a process, before it
// computes on several threads.
void resolve_vector_math();

}  // namespace hedgerow::kernels
