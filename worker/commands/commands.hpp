// The subcommands of hedgerow-worker, one file each. A register function adds its subcommand and
// options to the app; when the user chose it, its CLI11 callback stores in `action` what main()
// runs after parsing, so that errors of all commands are turned into a message and an exit code in
// one place.
#pragma once

#include <functional>

#include "storage/base/error.hpp"

namespace CLI {
class App;
}

namespace hedgerow::worker {

using Action = std::function<storage::ExitCode()>;

void register_evaluate(CLI::App& app, Action& action);
void register_serve(CLI::App& app, Action& action);
void register_finetune(CLI::App& app, Action& action);
void register_answer(CLI::App& app, Action& action);
void register_generate(CLI::App& app, Action& action);
void register_merge(CLI::App& app, Action& action);
void register_lab(CLI::App& app, Action& action);
void register_probe_attention(CLI::App& app, Action& action);
void register_probe(CLI::App& app, Action& action);
void register_mpi_probe(CLI::App& app, Action& action);
void register_time_layer(CLI::App& app, Action& action);

}  // namespace hedgerow::worker
