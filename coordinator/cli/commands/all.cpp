#include <array>

#include "coordinator/cli/commands/commands.hpp"

namespace hedgerow::coordinator::cli {

std::span<const Command> all_commands() {
  static constexpr std::array kCommands{
      Command{"init", "write a recipe for a model and a text", declare_init},
      Command{"plan", "say what a run will take, and refuse what does not fit", declare_plan},
      Command{"keygen", "make the keys of a run that other hosts may join", declare_keygen},
      Command{"run", "start a run, or go on with it", declare_run},
      Command{"submit", "hand a run to the batch system of a cluster", declare_submit},
      Command{"stop", "ask a run to checkpoint and stop", declare_stop},
      Command{"worker", "join a run with a worker on this machine", declare_worker},
      Command{"status", "show where a run stands", declare_status},
      Command{"watch", "show a run live, block by block", declare_watch},
      Command{"metrics", "print what each layer's training measured, over time", declare_metrics},
      Command{"report", "write a run as one HTML file", declare_report},
      Command{"explain", "say why a block is in its state", declare_explain},
      Command{"logs", "show what workers wrote", declare_logs},
      Command{"check", "verify every file that a run has committed", declare_check},
      Command{"clean", "remove what a run no longer needs", declare_clean},
      Command{"tokenize", "turn a recipe's text into a tokens file", declare_tokenize},
      Command{"import", "turn published LoLCATs weights into a student", declare_import},
      Command{"evaluate", "measure perplexity and the error of each layer", declare_evaluate},
      Command{"probe", "measure attention by layer and head", declare_probe},
      Command{"generate", "let a model go on from a prompt", declare_generate},
      Command{"export", "write a Hugging Face directory, or the adapter alone", declare_export},
      Command{"doctor", "examine this machine and say how to mend it", declare_doctor},
      Command{"lab", "run a paper's experiment in a small model", declare_lab},
      Command{"completion", "print the completion script of a shell", declare_completion},
  };
  return kCommands;
}

}  // namespace hedgerow::coordinator::cli
