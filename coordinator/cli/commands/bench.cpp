#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>

#include "coordinator/cli/bench/bench_plot.hpp"
#include "coordinator/cli/bench/bench_report.hpp"
#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"
#include "coordinator/wire/kernel_sweep.hpp"
#include "storage/base/file.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

constexpr char kDelimiter = ',';

// The command line's words; the sweep's own fields where they are numbers.
struct BenchOptions {
  std::string what, plot;
  wire::KernelSweep sweep;
  std::vector<std::string> heads, layouts, dtypes, maps, directions;
};

template <typename Value, typename Parse>
void take_words(std::vector<Value>& values, const std::vector<std::string>& words, Parse parse) {
  if (words.empty()) return;
  values.clear();
  for (const std::string& word : words) values.push_back(parse(word));
}

wire::KernelSweep sweep_of(const BenchOptions& options) {
  wire::KernelSweep sweep = options.sweep;
  take_words(sweep.heads, options.heads, wire::head_counts_from_string);
  take_words(sweep.layouts, options.layouts, storage::window_layout_from_string);
  take_words(sweep.dtypes, options.dtypes, wire::bench_dtype_from_string);
  take_words(sweep.maps, options.maps, storage::feature_map_kind_from_string);
  take_words(sweep.directions, options.directions, wire::bench_direction_from_string);
  sweep.validate();
  return sweep;
}

// Before minutes of measuring, not after.
void check_plot(const std::string& plot) {
  if (plot.empty()) return;
  const fs::path folder = fs::absolute(plot).parent_path();
  require(plot.ends_with(".svg"),
          "--plot: expected a file that ends in .svg, found '" + plot + "'");
  require(fs::is_directory(folder),
          "--plot: the folder " + folder.string() + " is not there; make it, or choose another");
  require(!fs::is_directory(plot), "--plot: " + plot + " is a directory; name a file");
}

std::string device_text(const json& device) {
  const int threads = device.value("threads", 0);
  return device.value("model", device.value("device", "")) +
         (device.value("device", "") == "cpu"
              ? ", " + std::to_string(threads) + (threads == 1 ? " thread" : " threads")
              : "") +
         ", LibTorch " + device.value("libtorch", "");
}

// What the whole sweep has in common, beside its device.
std::string common_text(const wire::KernelSweep& sweep) {
  std::set<int> features;
  for (const storage::FeatureMapKind map : sweep.maps) {
    for (const int count : sweep.features_of(map)) features.insert(count);
  }
  const bool has_window =
      std::any_of(sweep.layouts.begin(), sweep.layouts.end(), [](storage::WindowLayout layout) {
        return layout != storage::WindowLayout::kNone;
      });
  std::string text;
  if (sweep.dtypes.size() == 1) text += std::string(wire::to_string(sweep.dtypes[0])) + ", ";
  if (has_window) text += "W = " + std::to_string(sweep.window) + ", ";
  if (features.size() == 1) text += "F = " + std::to_string(*features.begin()) + ", ";
  return text + "D = " + std::to_string(sweep.head_dim) + ", " +
         (sweep.repeats == 1 ? "measured once"
                             : "medians of " + std::to_string(sweep.repeats) + " repeats");
}

// What comes from the worker, shown as it comes.
class BenchView {
 public:
  BenchView(Terminal& terminal, const wire::KernelSweep& sweep)
      : terminal_(terminal), sweep_(sweep) {}

  void take(const json& object) {
    const std::string event = object.value("event", "");
    if (event == "device") show_device(object);
    if (event == "measured") show_row(kernel_row(object));
    if (event == "measured" || event == "refused") ++num_done_;
    if (event == "left_out") show_left_out(object);
    if (event == "refused") terminal_.warn(place_of(object) + ": not measured, " + reason(object));
    terminal_.print_json(object);
  }

  // The crossovers of what was measured, and the plot.
  void finish(const std::string& plot, bool is_complete) {
    const std::vector<KernelLine> lines = kernel_lines(rows_);
    json crossovers = json::array();
    if (!lines.empty()) terminal_.print("");
    for (const KernelLine& line : lines) {
      terminal_.print(crossover_text(line));
      crossovers.push_back(crossover_json(line));
    }
    if (!plot.empty()) {
      storage::write_atomically(plot, kernel_plot(lines, device_ + "; " + common_text(sweep_)));
      terminal_.say("wrote " + plot);
    }
    terminal_.print_json({{"event", "crossovers"},
                          {"crossovers", crossovers},
                          {"is_complete", is_complete},
                          {"plot", plot.empty() ? json() : json(plot)}});
  }

  // What the crossovers and the plot after it leave out.
  void show_interrupted() {
    terminal_.warn("interrupted: " + std::to_string(num_done_) + " of " +
                   std::to_string(sweep_.num_measurements()) + " measurements done");
  }

  [[nodiscard]] bool is_empty() const { return rows_.empty(); }

 private:
  static std::string reason(const json& object) { return one_line(object.value("reason", "")); }

  static std::string place_of(const json& object) {
    std::string text = object.value("direction", "") +
                       ", T = " + std::to_string(object.value("length", 0)) + ", " +
                       object.value("heads", "") + " heads";
    for (const char* key : {"layout", "map", "dtype", "softmax"}) {
      if (object.contains(key)) text += ", " + object.value(key, "");
    }
    return one_line(text);
  }

  void show_device(const json& device) {
    device_ = one_line(device_text(device));
    const auto rate = [&](const char* key) { return number_text(number_or_nan(device, key)); };
    terminal_.print(device_ + "; reaches " + rate("copy_gb_per_s") + " GB/s, " +
                    rate("bf16_tflop_per_s") + " TFLOP/s in bf16, " + rate("fp32_tflop_per_s") +
                    " in fp32");
  }

  void show_row(const KernelRow& row) {
    if (rows_.empty()) terminal_.print(KernelTable::title(terminal_.answer_width()));
    terminal_.print(KernelTable::line(row, terminal_.answer_width()));
    rows_.push_back(row);
  }

  void show_left_out(const json& object) {
    terminal_.detail(place_of(object) + ": softmax backend left out, " + reason(object));
  }

  Terminal& terminal_;
  const wire::KernelSweep& sweep_;
  std::string device_;
  std::vector<KernelRow> rows_;
  std::int64_t num_done_ = 0;  // refused ones too: they are not tried again
};

ExitCode run_bench(const BenchOptions& options, Terminal& terminal) {
  const wire::KernelSweep sweep = sweep_of(options);
  check_plot(options.plot);
  const ChildCommand command{
      .arguments = {worker_binary(terminal.console()), "bench-kernels", "--progress"},
      .input = json(sweep).dump() + "\n"};
  const InterruptScope interrupts;
  terminal.status("measuring the device ...");
  BenchView view(terminal, sweep);
  const bool is_complete = run_helper(
      terminal, "sweep", "hedgerow-worker bench-kernels", command, [&](const json& object) {
        view.take(object);
      });
  if (!is_complete) view.show_interrupted();
  view.finish(options.plot, is_complete);
  if (!is_complete) return ExitCode::kInterrupted;
  if (view.is_empty())
    throw Error(ErrorKind::kExhausted,
                "bench kernels: nothing of the sweep could be measured, for the reasons above; "
                "choose shorter --lengths, fewer --batch-tokens or fewer --heads");
  return ExitCode::kOk;
}

// A list of words, each one of `known`.
template <typename Known, typename Values>
void add_words(CLI::App& app,
               const std::string& name,
               std::vector<std::string>& words,
               const std::string& description,
               const Known& known,
               const Values& otherwise) {
  one_of(app.add_option(name, words, description), wire::words_of(known))
      ->delimiter(kDelimiter)
      ->default_str(CLI::detail::join(wire::words_of(otherwise), ","));
}

template <typename Number>
void add_numbers(CLI::App& app,
                 const std::string& name,
                 std::vector<Number>& numbers,
                 const std::string& description,
                 int most) {
  app.add_option(name, numbers, description)
      ->delimiter(kDelimiter)
      ->type_name("N,N")
      ->check(CLI::Range(1, most).description(""))
      ->default_str(CLI::detail::join(numbers, ","));
}

CLI::Option* add_number(CLI::App& app,
                        const std::string& name,
                        auto& number,
                        const std::string& description,
                        int most) {
  return app.add_option(name, number, description)
      ->type_name("N")
      ->check(CLI::Range(1, most).description(""));
}

void add_swept(CLI::App& app, BenchOptions& options) {
  wire::KernelSweep& sweep = options.sweep;
  add_numbers(app,
              "--lengths",
              sweep.lengths,
              "tokens T; of decode, tokens of context",
              wire::KernelSweep::kMaxLength);
  add_numbers(app,
              "--features",
              sweep.features,
              "features F, of the maps that have a projection",
              wire::KernelSweep::kMaxFeatures);
  app.add_option("--heads", options.heads, "query heads and key/value heads, as 32:8")
      ->delimiter(kDelimiter)
      ->type_name("Q:KV")
      ->default_str(to_string(sweep.heads.front()));
  add_words(app, "--layout", options.layouts, "window layouts", wire::kBenchLayouts, sweep.layouts);
  add_words(app, "--dtype", options.dtypes, "of q, k and v", wire::kBenchDtypes, sweep.dtypes);
  add_words(app, "--map", options.maps, "feature maps", wire::kBenchMaps, sweep.maps);
  add_words(app,
            "--direction",
            options.directions,
            "what is timed; training: forward and backward together",
            wire::kBenchDirections,
            sweep.directions);
}

}  // namespace

RunCommand declare_bench(CLI::App& app) {
  const auto options = std::make_shared<BenchOptions>();
  one_of(app.add_option("what", options->what, "what to measure"), {"kernels"})->required();
  add_swept(app, *options);
  wire::KernelSweep& sweep = options->sweep;
  add_number(app, "--head-dim", sweep.head_dim, "D", wire::KernelSweep::kMaxHeadDim)
      ->capture_default_str();
  add_number(
      app, "--window", sweep.window, "W, keys that keep softmax", wire::KernelSweep::kMaxWindow)
      ->capture_default_str();
  add_number(app,
             "--batch-tokens",
             sweep.batch_tokens,
             "sequences times T (of decode, the greatest T), at least one sequence",
             wire::KernelSweep::kMaxBatchTokens)
      ->capture_default_str();
  add_number(app,
             "--repeats",
             sweep.repeats,
             "alternating; medians are shown",
             wire::KernelSweep::kMaxRepeats)
      ->capture_default_str();
  one_of(app.add_option("--device", sweep.device, "where to compute"), {"auto", "cpu", "cuda"})
      ->capture_default_str();
  add_number(app,
             "--threads",
             sweep.threads,
             "of the CPU; as many as cores unless told",
             wire::KernelSweep::kMaxThreads);
  app.add_option("--plot", options->plot, "draw time a token against T there, an .svg")
      ->type_name("FILE");
  return [options](Terminal& terminal) { return run_bench(*options, terminal); };
}

}  // namespace hedgerow::coordinator::cli
