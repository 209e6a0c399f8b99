#include <CLI/CLI.hpp>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>

#include "coordinator/bench/kernel_sweep.hpp"
#include "coordinator/cli/commands/commands.hpp"
#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/programs/programs.hpp"
#include "coordinator/cli/tasks/bench_generate.hpp"
#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/cli/terminal/interrupt.hpp"

namespace hedgerow::coordinator::cli {
namespace {

using measure::KernelSweep;
using nlohmann::json;
using storage::Error;
using storage::ErrorKind;
using storage::ExitCode;

constexpr const char* kRowFormat = "%-9s %7s %-6s %-9s %-16s %5s %-5s %9s %10s %7s  %-9s %s";

// One row of the table; columns keep their places because rows are printed as they come.
std::string row_text(const std::array<std::string, 12>& cells) {
  std::array<char, 512> text{};
  std::apply(
      [&](const auto&... cell) {
        std::snprintf(text.data(), text.size(), kRowFormat, cell.c_str()...);
      },
      cells);
  return text.data();
}

std::string text_of(const json& object, const char* key) {
  if (!object.contains(key)) return "";
  return one_line(object[key].is_string() ? object[key].get<std::string>() : object[key].dump());
}

// The ceiling that a measurement is nearer to.
std::string of_peak(const json& measured) {
  const double flops = number_or_nan(measured, "share_of_flops");
  const double bytes = number_or_nan(measured, "share_of_bandwidth");
  return flops >= bytes ? std::to_string(std::lround(100 * flops)) + "% flop"
                        : std::to_string(std::lround(100 * bytes)) + "% mem";
}

std::string row_of(const json& measured) {
  const json softmax = measured.at("softmax").is_object() ? measured["softmax"] : json::object();
  return row_text({text_of(measured, "direction"),
                   text_of(measured, "length"),
                   text_of(measured, "heads"),
                   text_of(measured, "layout"),
                   text_of(measured, "map"),
                   text_of(measured, "features"),
                   text_of(measured, "dtype"),
                   number_text(number_or_nan(measured, "ms")),
                   number_text(number_or_nan(softmax, "ms")),
                   number_text(number_or_nan(measured, "ratio")),
                   of_peak(measured),
                   softmax.contains("name") ? text_of(softmax, "name") : "none"});
}

std::string place_of(const json& object) {
  std::string text = text_of(object, "direction") + ", T = " + text_of(object, "length");
  for (const char* key : {"heads", "layout", "map", "dtype", "softmax"}) {
    if (object.contains(key)) text += ", " + text_of(object, key);
  }
  return text;
}

ExitCode run_bench(const json& sweep, Terminal& terminal) {
  sweep.get<KernelSweep>().validate();
  const ChildCommand command{
      .arguments = {worker_binary(terminal.console()), "bench-kernels", "--progress"},
      .input = sweep.dump() + "\n"};
  const InterruptScope interrupts;
  terminal.status("measuring the device ...");
  int num_measured = 0;
  const auto show = [&](const json& object) {
    const std::string event = object.value("event", "");
    const auto rate = [&](const char* key) { return number_text(number_or_nan(object, key)); };
    if (event == "device") {
      terminal.print(text_of(object, "model") + ", " + text_of(object, "threads") +
                     " CPU thread(s), LibTorch " + text_of(object, "libtorch") + "; reaches " +
                     rate("copy_gb_per_s") + " GB/s, " + rate("bf16_tflop_per_s") +
                     " TFLOP/s in bf16, " + rate("fp32_tflop_per_s") + " in fp32");
      terminal.print(fit(row_text({"direction",
                                   "T",
                                   "heads",
                                   "layout",
                                   "map",
                                   "F",
                                   "dtype",
                                   "ms",
                                   "softmax ms",
                                   "ratio",
                                   "of peak",
                                   "softmax by"}),
                         terminal.answer_width()));
    } else if (event == "measured") {
      ++num_measured;
      terminal.print(fit(row_of(object), terminal.answer_width()));
    } else if (event == "refused") {
      terminal.warn(place_of(object) + ": not measured, " + text_of(object, "reason"));
    } else if (event == "left_out") {
      terminal.detail(place_of(object) + ": softmax backend left out, " +
                      text_of(object, "reason"));
    }
    terminal.print_json(object);
  };
  const bool is_complete =
      run_helper(terminal, "sweep", "hedgerow-worker bench-kernels", command, show);
  terminal.print_json({{"event", "end"}, {"is_complete", is_complete}});
  if (!is_complete) {
    terminal.warn("interrupted after " + counted(num_measured, "measurement"));
    return ExitCode::kInterrupted;
  }
  if (num_measured == 0)
    throw Error(ErrorKind::kExhausted,
                "bench kernels: nothing of the sweep could be measured, for the reasons above; "
                "choose shorter --lengths, fewer --batch-tokens or fewer --heads");
  return ExitCode::kOk;
}

// An option whose values, where given, go into the sweep under `key`.
template <typename Value>
CLI::Option* add_swept(CLI::App& app,
                       const std::shared_ptr<json>& sweep,
                       const std::string& name,
                       const std::string& key,
                       const std::string& description,
                       const std::string& otherwise) {
  CLI::Option* option = app.add_option_function<Value>(
      name, [sweep, key](const Value& value) { (*sweep)[key] = value; }, description);
  if constexpr (!std::is_same_v<Value, std::string> && !std::is_integral_v<Value>)
    option->delimiter(',');
  return option->default_str(otherwise);
}

}  // namespace

RunCommand declare_bench(CLI::App& app) {
  using Words = std::vector<std::string>;
  using Numbers = std::vector<std::int64_t>;
  const auto sweep = std::make_shared<json>(json::object());
  const KernelSweep defaults;
  const auto list = [](const auto& values) { return CLI::detail::join(values, ","); };
  const auto words = [&](const char* name,
                         const char* key,
                         const char* description,
                         const auto& known,
                         const auto& otherwise) {
    one_of(add_swept<Words>(app, sweep, name, key, description, list(measure::words_of(otherwise))),
           measure::words_of(known));
  };
  const auto numbers = [&](const char* name,
                           const char* key,
                           const char* description,
                           const auto& otherwise,
                           int most) {
    add_swept<Numbers>(app, sweep, name, key, description, list(otherwise))
        ->type_name("N,N")
        ->check(CLI::Range(1, most).description(""));
  };
  const auto number = [&](const char* name,
                          const char* key,
                          const char* description,
                          std::int64_t otherwise,
                          int most) {
    add_swept<std::int64_t>(
        app, sweep, name, key, description, otherwise > 0 ? std::to_string(otherwise) : "")
        ->type_name("N")
        ->check(CLI::Range(1, most).description(""));
  };
  const auto what = std::make_shared<std::string>();
  const auto generation = std::make_shared<GenerateBench>();
  one_of(app.add_option("what", *what, "what to measure"), {"kernels", "generate"})->required();
  add_generate_bench(app, *generation);
  numbers("--lengths",
          "lengths",
          "tokens T; of decode, tokens of context",
          defaults.lengths,
          KernelSweep::kMaxLength);
  numbers("--features",
          "features",
          "features F, of the maps that have a projection",
          defaults.features,
          KernelSweep::kMaxFeatures);
  add_swept<Words>(app,
                   sweep,
                   "--heads",
                   "heads",
                   "query heads and key/value heads, as 32:8",
                   list(measure::words_of(defaults.heads)))
      ->type_name("Q:KV");
  words("--layout", "layouts", "window layouts", measure::kBenchLayouts, defaults.layouts);
  words("--dtype", "dtypes", "of q, k and v", measure::kBenchDtypes, defaults.dtypes);
  words("--map", "maps", "feature maps", measure::kBenchMaps, defaults.maps);
  words("--direction",
        "directions",
        "what is timed; training: forward and backward together",
        measure::kBenchDirections,
        defaults.directions);
  number("--head-dim", "head_dim", "D", defaults.head_dim, KernelSweep::kMaxHeadDim);
  number(
      "--window", "window", "W, keys that keep softmax", defaults.window, KernelSweep::kMaxWindow);
  add_swept<std::int64_t>(app,
                          sweep,
                          "--sinks",
                          "sinks",
                          "first tokens that stay under softmax; unless told 4, or W if that is "
                          "less; none without a window",
                          "")
      ->type_name("N")
      ->check(CLI::Range(0, KernelSweep::kMaxSinks).description(""));
  one_of(add_swept<std::string>(app,
                                sweep,
                                "--key-maps",
                                "key_maps",
                                "which heads have a map and a state of keys; unless told kv_head, "
                                "of positive_random query_head",
                                ""),
         measure::words_of(measure::kBenchKeyMaps));
  number("--batch-tokens",
         "batch_tokens",
         "sequences times T (of decode, the greatest T), at least one sequence",
         defaults.batch_tokens,
         KernelSweep::kMaxBatchTokens);
  number("--repeats",
         "repeats",
         "alternating; medians are shown",
         defaults.repeats,
         KernelSweep::kMaxRepeats);
  number("--threads",
         "threads",
         "of the CPU; as many as cores unless told",
         0,
         KernelSweep::kMaxThreads);
  one_of(
      add_swept<std::string>(app, sweep, "--device", "device", "where to compute", defaults.device),
      {"auto", "cpu", "cuda"});
  return [sweep, what, generation](Terminal& terminal) {
    if (*what == "kernels") return run_bench(*sweep, terminal);
    return bench_generate(
        *generation, sweep->value("device", ""), sweep->value("threads", 0), terminal);
  };
}

}  // namespace hedgerow::coordinator::cli
