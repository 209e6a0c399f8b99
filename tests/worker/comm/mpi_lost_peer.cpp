// What a rank sees of a peer that was stopped (SIGSTOP, a dead node behind a silent network): run
// by mpirun with 2 ranks. Rank 1 stops itself; rank 0, which waits for a message ("receive") or is
// at its end already ("leave"), must name it within the deadline and leave without MPI_Finalize,
// upon which mpirun ends the stopped one. The ctest entries look for the line that rank 0 prints.
#include <csignal>
#include <cstdio>
#include <string_view>
#include <vector>

#include "storage/base/error.hpp"
#include "worker/comm/communicator.hpp"

int main(int argc, char** argv) {
  using namespace hedgerow;
  const bool receives = argc > 1 && std::string_view(argv[1]) == "receive";
  auto communicator = worker::make_mpi_communicator(std::chrono::milliseconds(1000));
  communicator->barrier();
  if (communicator->rank() == 1) std::raise(SIGSTOP);
  std::vector<std::byte> bytes(4'000'000);
  try {
    if (receives) communicator->receive(bytes, 1, 0);
    communicator.reset();
  } catch (const storage::Error& error) {
    std::printf("%s: %s\n", std::string(to_string(error.kind())).c_str(), error.what());
    return static_cast<int>(exit_code(error.kind()));
  }
  return static_cast<int>(storage::ExitCode::kEnvironment);
}
