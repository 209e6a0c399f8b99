// hedgerow-worker serve: pulls tasks from the coordinator of a run until it is told to stop.
#include "worker/serve.hpp"

#include <ATen/Parallel.h>

#include <CLI/CLI.hpp>
#include <memory>

#include "worker/commands/commands.hpp"

namespace hedgerow::worker {

constexpr int kLargestLocalRank = 1023;  // more workers than any host has

void register_serve(CLI::App& app, Action& action) {
  auto options = std::make_shared<ServeOptions>();
  auto threads = std::make_shared<int>(0);
  CLI::App* command =
      app.add_subcommand("serve", "Pull tasks from a run's coordinator and compute them");
  command->add_option("--run", options->run_directory, "Run directory")->required();
  command->add_option("--connect", options->endpoint, "The coordinator, as tcp://HOST:PORT")
      ->required();
  command->add_option("--threads", *threads, "Compute threads; 0: all cores");
  command
      ->add_option("--local-rank",
                   options->local_rank,
                   "Number of this worker on its host: picks among several GPUs")
      ->check(CLI::Range(0, kLargestLocalRank));
  command
      ->add_option("--workers-on-device",
                   options->workers_on_device,
                   "Workers that share this one's device, itself among them: each counts on its "
                   "part of the memory")
      ->check(CLI::Range(1, kLargestLocalRank + 1));
  command->add_option(
      "--worker", options->uuid, "Name of this worker in the run; drawn if not given");
  command->add_option(
      "--incarnation", options->incarnation, "Grows with each restart of the same worker");
  command->add_option(
      "--key", options->key_pair, "Name of this worker's key pair in the run's keys folder");
  command->callback([options, threads, &action] {
    action = [options, threads] {
      if (*threads > 0) at::set_num_threads(*threads);
      return serve(*options);
    };
  });
}

}  // namespace hedgerow::worker
