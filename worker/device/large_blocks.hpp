// malloc's policy in a process that computes. glibc takes large blocks from the system and gives
// them back at once, so every activation of a long sequence is new pages that the kernel must zero:
// a tenth of a transfer step (4 x 512 and 4 x 2,048 tokens of SmolLM2 on two Zen 5 cores), a third
// of an attention over 128 K tokens. Kept, the same memory serves from layer to layer and from step
// to step.
#pragma once

namespace hedgerow::worker {

// For the whole process, before it computes: blocks of up to 1 GiB are kept, or of up to 32 MiB
// where an older glibc allows no more. Without glibc nothing happens.
void keep_large_blocks();

// Until the next keep_large_blocks(): blocks of a megabyte and more go back at once. While a model
// is loaded, what each tensor was read into would else lie unused between those that stay.
void return_large_blocks();

// What is kept and unused, to the system: between tasks, whose shapes differ.
void release_kept_blocks();

}  // namespace hedgerow::worker
