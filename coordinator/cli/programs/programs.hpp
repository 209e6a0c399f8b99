// Where the other programs are: hedgerow-worker beside this binary, the Python edges
// (deploy/huggingface) in the checkout or under the installation, the interpreter in the virtual
// environment that deploy/setup makes. Each may be overridden: HEDGEROW_WORKER,
// HEDGEROW_HUGGINGFACE, HEDGEROW_PYTHON, HEDGEROW_CACHE.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "coordinator/cli/programs/child.hpp"
#include "coordinator/cli/terminal/console.hpp"

namespace hedgerow::coordinator::cli {

[[nodiscard]] std::filesystem::path own_binary();
// Each throws kUnavailable naming every place it looked at.
[[nodiscard]] std::filesystem::path worker_binary(const Console& console);
[[nodiscard]] std::filesystem::path huggingface_directory(const Console& console);
[[nodiscard]] std::filesystem::path python_interpreter(const Console& console);
// The words that start that interpreter in UTF-8, whatever the shell's PYTHONPATH, PYTHONHOME,
// PYTHONSAFEPATH, PYTHONIOENCODING and locale are.
[[nodiscard]] std::vector<std::string> python_words(const Console& console);

// Runs a program whose stdout is JSON lines: {"event":"progress","phase","progress":0..1,"note"}
// moves a bar, which begins anew with every phase; {"event":"warning","text"} is one; every other
// object goes to on_object. The bar is called `label`, or by its phase. Throws child_error(name) if
// it fails; returns false when it was interrupted.
bool run_helper(Terminal& terminal,
                const std::string& label,
                const std::string& name,
                const ChildCommand& command,
                const std::function<void(const nlohmann::json&)>& on_object);

// run_helper() for deploy/huggingface/<script>, whose stdin is `input`.
bool run_python(Terminal& terminal,
                const std::string& label,
                const std::string& script,
                const std::vector<std::string>& arguments,
                const std::function<void(const nlohmann::json&)>& on_object,
                const std::string& input = {});

}  // namespace hedgerow::coordinator::cli
