#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/export/export_directory.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using storage::ExitCode;

struct ExportOptions {
  ModelOptions model;
  std::string out;
  bool adapter_only = false, links = false;
};

ExitCode run_export(ExportOptions& options, Terminal& terminal) {
  require(!(options.adapter_only && options.links),
          "--link is about the teacher's weights, which --adapter leaves out");
  const ModelChoice choice = choose_model(options.model);
  require(!choice.student.empty(),
          "nothing to export: that is the teacher itself; choose a student");
  if (!choice.run.empty() && !options.adapter_only) verify_evaluations(choice.run);
  const InterruptScope interrupts;
  const ExportRequest request{choice, options.out, options.links};
  const std::optional<ExportSummary> summary =
      options.adapter_only ? export_adapter(request) : export_model(request, terminal);
  if (!summary) return ExitCode::kInterrupted;
  const std::string lora = choice.lora.empty() ? ""
                           : summary->merged   ? ", LoRA merged"
                                               : ", with its LoRA adapter";
  terminal.print(options.out + ": " + std::to_string(summary->num_tensors) + " tensors, " +
                 bytes_text(summary->num_bytes) + lora);
  if (!options.adapter_only) {
    terminal.say("next: AutoModelForCausalLM.from_pretrained(\"" + options.out +
                 "\", trust_remote_code=True)");
    terminal.say("      AutoTokenizer.from_pretrained(\"" + options.out + "\")");
  }
  terminal.print_json({{"out", options.out},
                       {"subject", choice.subject()},
                       {"tensors", summary->num_tensors},
                       {"bytes", summary->num_bytes},
                       {"merged", summary->merged}});
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_export(CLI::App& app) {
  const auto options = std::make_shared<ExportOptions>();
  options->model.takes_teacher = false;
  add_model_options(app, options->model);
  app.add_option("--out", options->out, "the directory to write")->type_name("DIR")->required();
  app.add_flag("--adapter",
               options->adapter_only,
               "only feature maps (LoLCATs names) and LoRA (PEFT), without the teacher");
  app.add_flag(
      "--link", options->links, "link to the teacher's weight files instead of copying them");
  return [options](Terminal& terminal) { return run_export(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
