// hedgerow-worker lab: a study of the laboratory (laboratory/README.md). JSON lines on stdout:
// {"event":"row"} for each row of its table, then {"event":"result"} with all of it.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "worker/commands/commands.hpp"
#include "worker/commands/progress_lines.hpp"
#include "worker/laboratory/study.hpp"

namespace hedgerow::worker {
namespace {

struct LabArguments {
  std::string study, text, model, tokens;
  int seeds = 0, threads = 0;
  bool small = false, published = false, progress = false;
};

storage::ExitCode list_studies() {
  for (const auto& study : laboratory::all_studies())
    print_line({{"event", "study"},
                {"study", study.name},
                {"paper", study.paper},
                {"shows", study.shows},
                {"is_built", study.run != nullptr}});
  return storage::ExitCode::kOk;
}

storage::ExitCode lab_command(const LabArguments& given) {
  if (given.study == "list") return list_studies();
  const laboratory::Study& study = laboratory::find_study(given.study);
  if (given.published) {
    print_line({{"event", "published"},
                {"study", study.name},
                {"paper", study.paper},
                {"settings", study.published()},
                {"status", "not run"}});
    return storage::ExitCode::kOk;
  }
  const ProgressLines progress(given.progress);
  laboratory::StudyOptions options;
  options.num_seeds = given.seeds;
  options.num_threads = given.threads > 0
                            ? given.threads
                            : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  options.text = given.text;
  options.model = given.model;
  options.tokens = given.tokens;
  options.progress = [&](double share, const std::string& note) {
    progress(study.name, share, note);
  };
  options.on_row = [](nlohmann::json row) {
    row["event"] = "row";
    print_line(row);
  };
  nlohmann::json result = laboratory::to_json(study, study.run(options));
  result["event"] = "result";
  print_line(result);
  return storage::ExitCode::kOk;
}

}  // namespace

void register_lab(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("lab", "Run a study: a paper's experiment in a small model");
  const auto options = std::make_shared<LabArguments>();
  command->add_option("study", options->study, "Its name, or list")->required();
  CLI::Option* small = command->add_flag("--small", options->small, "At the size that runs here");
  command->add_flag("--published", options->published, "Show the paper's settings; not run")
      ->excludes(small);
  command->add_option("--seeds", options->seeds, "0: as many as the study's own")
      ->check(CLI::Range(0, 100));
  command->add_option("--threads", options->threads, "Trials at once; 0: as many as cores")
      ->check(CLI::Range(0, 256));
  command->add_option("--text", options->text, "Text file, of studies of language models");
  CLI::Option* tokens = command->add_option(
      "--tokens", options->tokens, "The text as that model's tokens (encode_text.py)");
  command->add_option("--model", options->model, "A BERT's directory, of encoder")->needs(tokens);
  command->add_flag("--progress", options->progress, kProgressHelp);
  command->callback([options, &action] { action = [options] { return lab_command(*options); }; });
}

}  // namespace hedgerow::worker
