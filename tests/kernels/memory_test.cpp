// No T x T tensor in the fused backends: the peak of the process's memory while they run.
#include <fstream>
#include <string>

#include "kernels/softmax_attention.hpp"
#include "kernels/transfer_loss.hpp"
#include "tests/kernels/attention_case.hpp"

namespace hedgerow::kernels {
namespace {

using testing::AttentionCase;
using testing::AttentionInputs;
using testing::make_inputs;

constexpr std::int64_t kTokens = 4096;
constexpr std::int64_t kSquareKib = kTokens * kTokens * 4 / 1024;  // one T x T fp32 tensor

// Forgets the peak so far (man 5 proc: clear_refs); false where the system does not allow it.
bool forget_peak() {
  std::ofstream file("/proc/self/clear_refs");
  file << "5" << std::flush;
  return file.good();
}

std::int64_t status_kib(const std::string& key) {
  std::ifstream file("/proc/self/status");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(key + ":", 0) == 0) {
      return std::stoll(line.substr(key.size() + 1));
    }
  }
  return 0;
}

// What the peak of the resident set gains while `work` runs, in KiB.
template <typename Work>
std::int64_t peak_gain_kib(const Work& work) {
  EXPECT_TRUE(forget_peak());
  const std::int64_t before = status_kib("VmRSS");
  work();
  return status_kib("VmHWM") - before;
}

class Memory : public ::testing::Test {
 protected:
  void SetUp() override {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "a sanitizer keeps freed memory";
#endif
    if (!forget_peak() || status_kib("VmHWM") == 0) {
      GTEST_SKIP() << "this system does not let a process reset its peak (/proc/self/clear_refs)";
    }
  }

  // Gradients of the maps and factors, as attention transfer takes them.
  static void differentiate(const at::Tensor& value, const AttentionInputs& x) {
    torch::autograd::grad({value},
                          {x.parameters.q.layer, x.parameters.k.layer, x.parameters.window_factors},
                          {at::ones_like(value)});
  }

  AttentionCase shape_{.B = 1, .H = 1, .G = 1, .T = kTokens};
};

TEST_F(Memory, OfForwardBackwardAndCrossEntropyHoldsNoSquare) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    shape_.options.window = layout;
    const AttentionInputs x = make_inputs(shape_).as(at::kFloat, at::kFloat);
    const auto hybrid = [&] {
      differentiate(hybrid_attention(x.q, x.k, x.v, x.parameters, shape_.options), x);
    };
    const auto cross_entropy = [&] {
      differentiate(transfer_cross_entropy(x.q, x.k, x.parameters, shape_.options), x);
    };
    EXPECT_LT(peak_gain_kib(hybrid), kSquareKib / 2) << shape_.name();
    EXPECT_LT(peak_gain_kib(cross_entropy), kSquareKib / 2) << shape_.name();
    EXPECT_LT(peak_gain_kib([&] { softmax_attention(x.q, x.k, x.v); }), kSquareKib / 2);
  }
}

TEST_F(Memory, OfTheAtenFormsHoldsNoSquare) {
  for (const WindowLayout layout : {WindowLayout::kTerraced, WindowLayout::kSliding}) {
    shape_.options.window = layout;
    const AttentionInputs x = make_inputs(shape_).as(at::kFloat, at::kFloat);
    const auto hybrid = [&] {
      differentiate(hybrid_attention(x.q, x.k, x.v, x.parameters, shape_.options, Backend::kAten),
                    x);
    };
    const auto cross_entropy = [&] {
      differentiate(transfer_cross_entropy(x.q, x.k, x.parameters, shape_.options, Backend::kAten),
                    x);
    };
    EXPECT_LT(peak_gain_kib(hybrid), kSquareKib / 2) << shape_.name();
    EXPECT_LT(peak_gain_kib(cross_entropy), kSquareKib / 2) << shape_.name();
  }
}

TEST_F(Memory, OfTheTeacherHoldsNoSquareInEitherFormNorForGroupedHeads) {
  shape_.H = 2;
  const AttentionInputs x = make_inputs(shape_).as(at::kFloat, at::kFloat);
  for (const Backend backend : {Backend::kAuto, Backend::kAten}) {
    const auto both_ways = [&] {
      torch::autograd::grad({softmax_attention_trainable(x.q, x.k, x.v, backend).sum()},
                            {x.q, x.k, x.v});
    };
    EXPECT_LT(peak_gain_kib(both_ways), kSquareKib) << "one head's; a square backend holds several";
  }
}

TEST_F(Memory, OfTheReferenceIsSeenToBeSquare) {
  const AttentionInputs x = make_inputs(shape_);
  EXPECT_GT(peak_gain_kib(
                [&] { hybrid_attention_reference(x.q, x.k, x.v, x.parameters, shape_.options); }),
            kSquareKib);
}

}  // namespace
}  // namespace hedgerow::kernels
