// main() of tests that run under mpirun: MPI lives from before the first test to after the last,
// and the exit status is a failure on every rank if it is one on any.
#include <gtest/gtest.h>

#include <cstdlib>

#include "worker/comm/communicator.hpp"

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const auto communicator = hedgerow::worker::make_mpi_communicator();
  const int failed = RUN_ALL_TESTS();
  const std::byte own{static_cast<unsigned char>(failed)};
  const auto all = communicator->all_gather({&own, 1});
  for (const std::byte one : all) {
    if (one != std::byte{0}) return EXIT_FAILURE;
  }
  return EXIT_SUCCESS;
}
