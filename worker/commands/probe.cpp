// hedgerow-worker probe and mpi-probe: what `hedgerow doctor` asks. probe says what this program
// was compiled with and what it finds when it runs; mpi-probe, started by a launcher as the
// finetune stage is, says whether its ranks meet. Both answer with one JSON line.
#include <torch/version.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <nlohmann/json.hpp>
#include <vector>

#include "coordinator/machine/gpus.hpp"
#include "coordinator/wire/coordinator_file.hpp"
#include "storage/base/build_info.hpp"
#include "worker/comm/nccl_exchange.hpp"
#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"

namespace hedgerow::worker {
namespace {

using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

constexpr std::size_t kBytes = 1U << 20;  // past every path for small messages
constexpr std::size_t kHostBytes = 256;

std::string version_text(int nccl) { return nccl == 0 ? "" : nccl_version_text(nccl); }

ExitCode probe() {
  const MpiVersions mpi = mpi_versions();
  print_line({{"version", storage::version()},
              {"git_hash", storage::git_hash()},
              {"libtorch", TORCH_VERSION},
              {"cuda", storage::has_cuda()},
              {"gpus", machine::num_visible_gpus()},
              {"mpi", {{"built", mpi.built}, {"found", mpi.found}}},
              {"nccl",
               {{"built", version_text(nccl::built_version())},
                {"found", version_text(nccl::version())}}}});
  return ExitCode::kOk;
}

// Every rank's host, in rank order.
std::vector<std::string> hosts_of(Communicator& communicator) {
  std::array<char, kHostBytes> own{};
  const std::string host = wire::this_host();
  std::copy_n(host.begin(), std::min(host.size(), own.size() - 1), own.begin());
  const auto all = communicator.all_gather(std::as_bytes(std::span(own)));
  std::vector<std::string> hosts;
  for (std::size_t at = 0; at < all.size(); at += kHostBytes)
    hosts.emplace_back(reinterpret_cast<const char*>(all.data() + at));
  return hosts;
}

// A megabyte from rank 0 to everybody and back: what each says it got is what was sent.
void check_exchange(Communicator& communicator) {
  std::vector<std::byte> bytes(kBytes);
  if (communicator.rank() == 0) {
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i % 251);
  }
  communicator.broadcast(bytes, 0);
  const auto all = communicator.all_gather(bytes);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i] == static_cast<std::byte>(i % kBytes % 251)) continue;
    throw Error(ErrorKind::kUnavailable,
                "rank " + std::to_string(communicator.rank()) + ": byte " + std::to_string(i) +
                    " of the exchange differs from what was sent; MPI is not usable here");
  }
}

ExitCode mpi_probe() {
  const auto communicator =
      launched_by_mpi() ? make_mpi_communicator() : make_single_communicator();
  const auto hosts = hosts_of(*communicator);
  const auto begin = std::chrono::steady_clock::now();
  check_exchange(*communicator);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  if (communicator->rank() == 0) {
    print_line({{"ranks", communicator->world_size()},
                {"hosts", hosts},
                {"library", mpi_versions().found},
                {"exchange_seconds", seconds.count()}});
  }
  communicator->barrier();
  return ExitCode::kOk;
}

}  // namespace

void register_probe(CLI::App& app, Action& action) {
  app.add_subcommand("probe", "What this program finds here, for 'hedgerow doctor'")
      ->group("")
      ->callback([&action] { action = probe; });
}

void register_mpi_probe(CLI::App& app, Action& action) {
  app.add_subcommand("mpi-probe", "Ranks that meet and part, for 'hedgerow doctor'")
      ->group("")
      ->callback([&action] { action = mpi_probe; });
}

}  // namespace hedgerow::worker
