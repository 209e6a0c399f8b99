#include "worker/task/failure.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <exception>
#include <new>

#include "coordinator/machine/memory.hpp"

namespace hedgerow::worker {
namespace {

using storage::ErrorKind;
using ::testing::HasSubstr;
using ::testing::Not;

template <typename Throw>
Failure failure_of(const Throw& body, const Work& work = {}) {
  try {
    body();
  } catch (...) {
    return current_failure(work);
  }
  return {ErrorKind::kInternal, "nothing was thrown"};
}

wire::Task transfer() {
  wire::Task task;
  task.kind = wire::TaskKind::kTransfer;
  task.block = 3;
  task.first_layer = 15;
  task.num_layers = 5;
  task.memory_bytes = 61ULL << 30;
  return task;
}

TEST(Failure, MemoryThatRunsOutNamesTheBlockWhatItNeedsAndWhatThereIs) {
  const Room gpu{"the GPU (H100)", 80ULL << 30, 70ULL << 30, 1ULL << 30};
  EXPECT_EQ(out_of_memory_text(work_of(transfer()), "2.00 GiB", gpu),
            "transfer of block 3 (layers 15-19) ran out of memory: it asked for 2.00 GiB more, the "
            "plan counts 61.00 GiB for it, the GPU (H100) has 80.00 GiB, of which this work holds "
            "70.00 GiB, other processes and contexts 9.00 GiB and 1.00 GiB are free; begin a run "
            "with a smaller plan.sequences_per_forward or plan.layers_per_block, or use another "
            "GPU that has more and nobody else's work");
  wire::Task rank;
  rank.kind = wire::TaskKind::kFinetune;
  EXPECT_THAT(out_of_memory_text(work_of(rank), "", {}),
              HasSubstr("finetune.sequences_per_micro_batch"))
      << "nothing is known, and the sentence still says what to do";
}

// What CUDA's allocator throws; an exit code of 1 would make a scheduler believe in a bug.
TEST(Failure, ACudaAllocatorsErrorIsExhaustedAndItsNumbersAreRead) {
  const Failure failure = failure_of(
      [] {
        C10_THROW_ERROR(OutOfMemoryError,
                        "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total "
                        "capacity of 79.15 GiB of which 1.06 GiB is free.");
      },
      work_of(transfer()));
  EXPECT_EQ(failure.kind, ErrorKind::kExhausted);
  EXPECT_EQ(storage::exit_code(failure.kind), storage::ExitCode::kEnvironment);
  EXPECT_THAT(failure.message, HasSubstr("it asked for 2.50 GiB more, the plan counts 61.00 GiB"));
  EXPECT_THAT(failure.message, Not(HasSubstr("Tried to allocate")));
}

TEST(Failure, OtherLibrariesThatSayItInWordsAreUnderstood) {
  for (const char* text :
       {"CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(h)`",
        "CUDA error: out of memory\nCUDA kernel errors might be reported late"}) {
    EXPECT_EQ(failure_of([text] { TORCH_CHECK(false, text); }).kind, ErrorKind::kExhausted) << text;
  }
  EXPECT_EQ(failure_of([] { TORCH_CHECK(false, "CUDA error: an illegal address"); }).kind,
            ErrorKind::kInternal);
}

TEST(Failure, TheCpusOwnExhaustionIsTold) {
  // Half of the address space: no machine has it, and none overcommits it.
  const Failure failure = failure_of([] { at::empty({std::int64_t{1} << 46}, at::kFloat); });
  EXPECT_EQ(failure.kind, ErrorKind::kExhausted) << failure.message;
  EXPECT_THAT(failure.message, HasSubstr("it asked for 281474976710656 bytes more, this process"));
  EXPECT_EQ(failure_of([] { throw std::bad_alloc(); }).kind, ErrorKind::kExhausted);
}

TEST(Failure, OurOwnErrorsKeepTheirKindAndWords) {
  const Failure failure =
      failure_of([] { throw storage::Error(ErrorKind::kCorrupt, "shard x: hash"); });
  EXPECT_EQ(failure.kind, ErrorKind::kCorrupt);
  EXPECT_EQ(failure.message, "shard x: hash");
}

}  // namespace
}  // namespace hedgerow::worker
