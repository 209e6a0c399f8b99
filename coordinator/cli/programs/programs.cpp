#include "coordinator/cli/programs/programs.hpp"

#include <unistd.h>

#include <optional>

#include "coordinator/cli/terminal/format.hpp"
#include "coordinator/machine/allocation.hpp"
#include "storage/base/error.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;

// The first candidate that exists. Throws kUnavailable with all of them.
fs::path first_existing(const std::string& what,
                        const std::vector<fs::path>& candidates,
                        const std::string& remedy) {
  std::string looked_at;
  for (const fs::path& candidate : candidates) {
    std::error_code ignored;
    if (fs::exists(candidate, ignored)) return candidate;
    looked_at += (looked_at.empty() ? "" : ", ") + candidate.string();
  }
  throw Error(ErrorKind::kUnavailable,
              what + " not found (looked at " + looked_at + "); " + remedy);
}

std::vector<fs::path> override_or(const Console& console,
                                  const std::string& name,
                                  std::vector<fs::path> otherwise) {
  const auto value = console.environment(name);
  if (value && !value->empty()) return {fs::path(*value)};
  return otherwise;
}

}  // namespace

fs::path own_binary() { return fs::read_symlink("/proc/self/exe"); }

fs::path worker_binary(const Console& console) {
  const fs::path beside = own_binary().parent_path() / "hedgerow-worker";
  return first_existing("hedgerow-worker",
                        override_or(console, "HEDGEROW_WORKER", {beside}),
                        "build it ('cmake --build --preset cpu') or install it beside hedgerow");
}

fs::path huggingface_directory(const Console& console) {
  const fs::path here = own_binary().parent_path();
  const std::vector<fs::path> usual{(here / "../../../deploy/huggingface")
                                        .lexically_normal(),  // build/<preset>/bin of a checkout
                                    (here / "../share/hedgerow/huggingface").lexically_normal()};
  return first_existing("the folder deploy/huggingface",
                        override_or(console, "HEDGEROW_HUGGINGFACE", usual),
                        "set HEDGEROW_HUGGINGFACE to it");
}

fs::path python_interpreter(const Console& console) {
  const fs::path home = console.environment("HOME").value_or("/");
  const fs::path cache =
      console.environment("HEDGEROW_CACHE").value_or((home / ".cache/hedgerow").string());
  // The first: of a prefix that has its own (HEDGEROW_CACHE=PREFIX deploy/setup).
  const fs::path own = (own_binary().parent_path() / "../venv/bin/python").lexically_normal();
  return first_existing("the Python interpreter of the Hugging Face edges",
                        override_or(console, "HEDGEROW_PYTHON", {own, cache / "venv/bin/python"}),
                        "run deploy/setup, or set HEDGEROW_PYTHON");
}

std::vector<std::string> python_words(const Console& console) {
  std::vector<std::string> words{"/usr/bin/env"};
  for (const std::string& name : machine::variables_with(
           [](std::string_view variable) { return variable.starts_with("PYTHON"); }))
    words.insert(words.end(), {"-u", name});
  words.insert(words.end(), {"PYTHONUTF8=1", "PYTHONNOUSERSITE=1", python_interpreter(console)});
  return words;
}

bool run_helper(Terminal& terminal,
                const std::string& label,
                const std::string& name,
                const ChildCommand& command,
                const std::function<void(const nlohmann::json&)>& on_object) {
  std::string phase;
  std::optional<ProgressBar> bar(std::in_place, terminal, label);
  const ChildResult result = run_child(command, terminal, [&](std::string_view line) {
    const auto object = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!object.is_object()) {
      terminal.detail(name + ": " + one_line(line));
    } else if (object.value("event", "") == "progress") {
      const std::string now = object.value("phase", "");
      // An ETA of one phase says nothing about the next.
      if (now != phase) bar.emplace(terminal, now);
      phase = now;
      bar->update(object.value("progress", 0.0), object.value("note", ""));
    } else if (object.value("event", "") == "warning") {
      terminal.warn(object.value("text", ""));
    } else {
      on_object(object);
    }
  });
  if (result.was_interrupted) return false;
  if (!result.ok()) throw child_error(name, result);
  return true;
}

bool run_python(Terminal& terminal,
                const std::string& label,
                const std::string& script,
                const std::vector<std::string>& arguments,
                const std::function<void(const nlohmann::json&)>& on_object,
                const std::string& input) {
  const Console& console = terminal.console();
  ChildCommand command;
  command.arguments = python_words(console);
  command.arguments.push_back(huggingface_directory(console) / script);
  command.arguments.insert(command.arguments.end(), arguments.begin(), arguments.end());
  command.input = input;
  return run_helper(terminal, label, script, command, on_object);
}

}  // namespace hedgerow::coordinator::cli
