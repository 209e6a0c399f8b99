// A pipeline over MPI, run by every rank of an mpirun of 2, of 3 and of 4: each rank is a stage.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "worker/finetune/pipeline.hpp"

namespace hedgerow::worker {
namespace {

// Of this size MPI reads a message from the sender's memory once the receiver is there, and the
// sender has computed on by then.
TEST(MpiPipeline, LargeMessagesArriveWholeAndInTheirOrder) {
  const auto ranks = make_mpi_communicator();
  const storage::Mesh mesh{.pipeline = ranks->world_size()};
  ASSERT_GE(mesh.pipeline, 2) << "run me under mpirun";
  const std::vector<std::int64_t> sizes = {1, 1024, 1024};
  const auto expect_all = [&](const at::Tensor& tensor, double value) {
    EXPECT_EQ(tensor.min().item<double>(), value);
    EXPECT_EQ(tensor.max().item<double>(), value);
  };
  Pipeline pipeline(mesh, *ranks, {.sizes = sizes, .stream = at::kFloat, .compute = at::kFloat});
  const int stage = ranks->rank(), num_later = mesh.pipeline - 1 - stage;
  for (const bool trains : {true, false}) {
    pipeline.run(5,
                 trains,
                 {.embed = [&](int i) { return at::full(sizes, 1000.0 * i); },
                  .forward =
                      [&](int, int i, const at::Tensor& hidden) {
                        expect_all(hidden, 1000.0 * i + stage);
                        return hidden + 1.0;
                      },
                  .compute_loss =
                      [&](int i, const at::Tensor&) {
                        return trains ? at::full(sizes, 100.0 * i) : at::Tensor();
                      },
                  .backward =
                      [&](int, int i, const at::Tensor& gradient) {
                        expect_all(gradient, 100.0 * i + 10.0 * num_later);
                        return gradient + 10.0;
                      }});
  }
}

}  // namespace
}  // namespace hedgerow::worker
