// The declare functions of all commands, one a file, for the table in all.cpp.
#pragma once

#include "coordinator/cli/command.hpp"

namespace hedgerow::coordinator::cli {

RunCommand declare_init(CLI::App& app);
RunCommand declare_plan(CLI::App& app);
RunCommand declare_keygen(CLI::App& app);
RunCommand declare_run(CLI::App& app);
RunCommand declare_submit(CLI::App& app);
RunCommand declare_stop(CLI::App& app);
RunCommand declare_worker(CLI::App& app);
RunCommand declare_status(CLI::App& app);
RunCommand declare_watch(CLI::App& app);
RunCommand declare_metrics(CLI::App& app);
RunCommand declare_report(CLI::App& app);
RunCommand declare_explain(CLI::App& app);
RunCommand declare_logs(CLI::App& app);
RunCommand declare_check(CLI::App& app);
RunCommand declare_clean(CLI::App& app);
RunCommand declare_tokenize(CLI::App& app);
RunCommand declare_import(CLI::App& app);
RunCommand declare_evaluate(CLI::App& app);
RunCommand declare_probe(CLI::App& app);
RunCommand declare_generate(CLI::App& app);
RunCommand declare_export(CLI::App& app);
RunCommand declare_doctor(CLI::App& app);
RunCommand declare_lab(CLI::App& app);
RunCommand declare_completion(CLI::App& app);

}  // namespace hedgerow::coordinator::cli
