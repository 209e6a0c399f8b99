// What a rank sees of a peer that was stopped (SIGSTOP, a dead node behind a silent network): run
// by mpirun with 2 ranks. Rank 1 stops itself; rank 0 must get an error that names it within the
// deadline, and leave without MPI_Finalize, upon which mpirun ends the stopped one. The ctest entry
// looks for the line that rank 0 prints.
#include <csignal>
#include <cstdio>

#include "storage/error.hpp"
#include "worker/comm/communicator.hpp"

int main() {
  using namespace hedgerow;
  const auto communicator = worker::make_mpi_communicator(std::chrono::milliseconds(1000));
  communicator->barrier();
  if (communicator->rank() == 1) std::raise(SIGSTOP);
  std::vector<std::byte> bytes(4'000'000);
  try {
    communicator->receive(bytes, 1, 0);
  } catch (const storage::Error& error) {
    std::printf("%s: %s\n", std::string(to_string(error.kind())).c_str(), error.what());
    return static_cast<int>(exit_code(error.kind()));
  }
  return 0;
}
