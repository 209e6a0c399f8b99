#include <CLI/CLI.hpp>
#include <memory>

#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/export/partial_directory.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "storage/files/file.hpp"
#include "storage/model/attention_spec.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::ExitCode;

// The files hold no settings: which attention they were trained with is the user's to say. The
// defaults are those of the published Llama 3.1 weights. LoLCATs has neither sinks nor key maps
// that query heads share.
struct ImportOptions {
  std::vector<std::string> files;
  std::string model, out, softmax_layers, feature_map = "hedgehog_softmax", window = "terraced";
  int window_size = 64;
  double alpha = 0.0;  // 0: twice the rank
};

storage::AttentionSpec attention_of(const ImportOptions& options, const json& found, int head_dim) {
  storage::AttentionSpec spec;
  spec.feature_map = storage::feature_map_kind_from_string(options.feature_map);
  spec.negation = spec.row().negation;
  spec.window = storage::window_layout_from_string(options.window);
  spec.window_size = options.window_size;
  spec.num_sinks = 0;
  spec.key_maps = storage::KeyMaps::kQueryHead;
  const json maps = found.value("feature_map", json::object());
  spec.feature_dim = maps.value("projected_dim", spec.projected_dim()) * (spec.negation ? 2 : 1);
  spec.bias = maps.value("bias", false);
  spec.validate(head_dim);
  return spec;
}

json description_of(const storage::ModelDirectory& model,
                    const storage::AttentionSpec& spec,
                    const json& found) {
  const json softmax_layers = found.value("softmax_layers", json::array());
  return {{"format", "student/1"},
          {"teacher", {{"path", model.path().string()}, {"fingerprint", model.fingerprint()}}},
          {"attention", spec},
          {"softmax_layers", softmax_layers}};
}

ExitCode run_import(const ImportOptions& options, Terminal& terminal) {
  const storage::ModelDirectory model = storage::ModelDirectory::open(options.model);
  PartialDirectory partial(options.out);
  std::vector<std::string> arguments{
      "read", "--model", model.path().string(), "--out", partial.path().string()};
  for (const std::string& file : options.files) arguments.insert(arguments.end(), {"--pt", file});
  if (!options.softmax_layers.empty())
    arguments.insert(arguments.end(), {"--softmax-layers", options.softmax_layers});
  if (options.alpha > 0)
    arguments.insert(arguments.end(), {"--alpha", nlohmann::json(options.alpha).dump()});
  const InterruptScope interrupts;
  json found;
  if (!run_python(terminal, "import", "convert_lolcats.py", arguments, [&](const json& object) {
        if (object.value("event", "") == "done") found = object;
      })) {
    return ExitCode::kInterrupted;
  }
  const storage::AttentionSpec spec = attention_of(options, found, model.config().head_dim);
  storage::write_atomically(partial.path() / "hedgerow.json",
                            description_of(model, spec, found).dump(2) + "\n");
  const json provenance = {{"format", "provenance/1"}, {"imported_from", options.files}};
  storage::write_atomically(partial.path() / "provenance.json", provenance.dump(2) + "\n");
  partial.publish();
  found["path"] = options.out;
  const fs::path out = options.out;
  const bool has_lora = fs::is_directory(out / "adapter");
  terminal.print("imported " + std::to_string(found.value("layers", 0)) + " layers into " +
                 options.out +
                 (has_lora ? ", with a LoRA adapter in " + (out / "adapter").string() : ""));
  terminal.say("next: hedgerow generate --model " + options.model + " --student " + options.out +
               (has_lora ? " --lora " + (out / "adapter").string() : "") + " 'a prompt'");
  terminal.print_json({{"student", options.out},
                       {"lora", has_lora ? (out / "adapter").string() : ""},
                       {"found", found}});
  return ExitCode::kOk;
}

}  // namespace

RunCommand declare_import(CLI::App& app) {
  const auto options = std::make_shared<ImportOptions>();
  app.add_option("file", options->files, "published LoLCATs weights (.pt), one file or one a block")
      ->type_name("FILE")
      ->required();
  app.add_option("--model", options->model, "the teacher they belong to")
      ->type_name("DIR")
      ->required();
  app.add_option("--out", options->out, "the student directory to write")
      ->type_name("DIR")
      ->required();
  app.add_option(
         "--softmax-layers", options->softmax_layers, "layers that kept softmax attention, as 7,15")
      ->type_name("LIST");
  app.add_option("--alpha", options->alpha, "LoRA's alpha, if it is not twice its rank")
      ->type_name("X")
      ->check(CLI::PositiveNumber.description(""));
  one_of(app.add_option("--feature-map", options->feature_map, "what they were trained with")
             ->capture_default_str(),
         {"hedgehog_softmax", "hedgehog_exp", "t2r"});
  one_of(app.add_option("--window", options->window, "likewise")->capture_default_str(),
         {"terraced", "sliding", "none"});
  app.add_option("--window-size", options->window_size, "likewise")
      ->type_name("N")
      ->check(CLI::Range(1, 1 << 20).description(""))
      ->capture_default_str();
  return [options](Terminal& terminal) { return run_import(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
