// What the tests of the fused CUDA backends share. cuda_kernels_test runs them on CPU tensors, with
// the kernels emulated; gpu_kernels_test on a card.
#pragma once

#include "kernels/attention_transfer.hpp"
#include "kernels/decode.hpp"
#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels::testing {

inline constexpr WindowLayout kWindowLayouts[] = {
    WindowLayout::kTerraced, WindowLayout::kSliding, WindowLayout::kNone};

// The sentence with which a call is refused; "nothing" where it is not.
std::string refusal(const std::function<void()>& call);

// make_inputs with maps that bf16 holds: the kernels see the values that the reference sees.
AttentionInputs make_bfloat16_inputs(const AttentionCase& shape);

// A problem with B = 1 and head_dim 64 that the kernels take.
AttentionCase small(WindowLayout layout, std::int64_t T);

// One function three times: ours and plain on bf16 inputs, plain as a simple program in bf16 writes
// it, and exact on fp64.
struct Programs {
  AttentionFunction ours, plain, exact;
};

class CudaBackend : public ::testing::TestWithParam<at::DeviceType> {
 protected:
  // Skips, with the reason, where the device is not there.
  void SetUp() override;

  // The value and every gradient by the 2 x rule. The second backend compares the largest errors of
  // some draws: of two window factors either side may hit one by luck.
  void expect_programs(const AttentionCase& shape,
                       const AttentionInputs& inputs,
                       const Programs& programs) const;
  void expect_programs(const AttentionCase& shape,
                       const Programs& programs,
                       std::uint64_t draws = 3) const;
  // The second backend in every layout at some lengths; with some windows of T tokens; of every
  // compiled shape; and of every map that the kernels take.
  using ProgramsOf = Programs (*)(const AttentionCase&);
  void expect_lengths(ProgramsOf programs_of, const std::vector<std::int64_t>& lengths) const;
  void expect_windows(ProgramsOf programs_of,
                      std::int64_t T,
                      const std::vector<std::int64_t>& windows) const;
  void expect_sizes(ProgramsOf programs_of, std::uint64_t draws = 3) const;
  void expect_maps(ProgramsOf programs_of) const;
  // A sequence that is walked in segments; and logits whose exponentials are extreme.
  void expect_segments(ProgramsOf programs_of) const;
  void expect_extreme_logits(ProgramsOf programs_of) const;
  // Key maps of kv heads, every query head of which adds to their gradients.
  void expect_shared_key_maps(ProgramsOf programs_of) const;
  // Sinks: one to as many as the window holds, in one tile of keys and two, of maps of query heads
  // and of kv heads.
  void expect_sinks(ProgramsOf programs_of) const;
  // Window factors that a caller gives where there is no window: they get no gradient and change
  // none.
  void expect_unread_window_factors(ProgramsOf programs_of) const;
};
class CudaTransfer : public CudaBackend {};
class CudaCrossEntropy : public CudaBackend {};

}  // namespace hedgerow::kernels::testing
