#include "storage/recipe/cluster_file.hpp"

#include "storage/base/error.hpp"
#include "storage/base/file.hpp"
#include "storage/recipe/toml_reader.hpp"

namespace hedgerow::storage {
namespace {

constexpr double kMaxSignalSeconds = 65535;  // sbatch takes no more

// What goes into one line of a script must be one.
void check_line(const std::string& name, const std::string& value, RecipeProblems& problems) {
  if (value.find_first_of("\n\r") != std::string::npos)
    problems.add(name, "has a line break; write one line");
}

void check_options(const std::string& name,
                   const std::vector<std::string>& options,
                   RecipeProblems& problems) {
  for (const std::string& option : options) {
    check_line(name, option, problems);
    if (!option.starts_with("-"))
      problems.add(name, "= \"" + option + "\": expected an option, as \"--exclusive\"");
  }
}

// "30", "90:00", "24:00:00", "2-12", "2-12:30:00", or a word for no limit.
bool is_time(const std::string& text) {
  if (text == "UNLIMITED" || text == "INFINITE") return true;
  int colons = 0, dashes = 0, digits = 0;
  for (const char c : text) {
    if (c >= '0' && c <= '9') {
      ++digits;
      continue;
    }
    if ((c != ':' && c != '-') || digits == 0) return false;
    if (c == '-' && (dashes > 0 || colons > 0)) return false;
    (c == ':' ? colons : dashes) += 1;
    digits = 0;
  }
  return digits > 0 && colons <= 2;
}

void check_time(const std::string& name, const std::string& value, RecipeProblems& problems) {
  if (value.empty() || is_time(value)) return;
  problems.add(name,
               "= \"" + value + "\": expected minutes, HH:MM:SS or D-HH:MM:SS, as \"24:00:00\"");
}

void read_shape(TomlReader& reader,
                const std::string& section,
                SlurmShape& shape,
                bool is_one_task,
                RecipeProblems& problems) {
  reader.section(section, "");
  if (!is_one_task) {
    reader.field("nodes", shape.nodes, {"", 0, 1e6});
    reader.field("tasks_per_node", shape.tasks_per_node, {"", 0, 1e4});
    reader.field("srun", shape.srun, {""});
  }
  reader.field("gpus_per_task", shape.gpus_per_task, {"", 0, 1024});
  reader.field("cpus_per_task", shape.cpus_per_task, {"", 0, 1e5});
  for (auto [key, value] : {std::pair("gres", &shape.gres),
                            {"memory", &shape.memory},
                            {"partition", &shape.partition},
                            {"qos", &shape.qos},
                            {"time", &shape.time}}) {
    reader.field(key, *value, {""});
    check_line(section + "." + key, *value, problems);
  }
  reader.field("sbatch", shape.sbatch, {""});
  check_time(section + ".time", shape.time, problems);
  check_options(section + ".sbatch", shape.sbatch, problems);
  check_options(section + ".srun", shape.srun, problems);
  if (!shape.gres.empty() && shape.gpus_per_task > 0) {
    problems.add(section + ".gres",
                 "= \"" + shape.gres + "\" and " + section + ".gpus_per_task = " +
                     std::to_string(shape.gpus_per_task) + " both ask for GPUs; leave one out");
  }
}

void read_slurm(TomlReader& reader, SlurmSection& slurm, RecipeProblems& problems) {
  reader.section("slurm", "");
  for (auto [key, value] : {std::pair("partition", &slurm.partition),
                            {"account", &slurm.account},
                            {"qos", &slurm.qos},
                            {"time", &slurm.time},
                            {"hedgerow", &slurm.hedgerow},
                            {"bind", &slurm.bind}}) {
    reader.field(key, *value, {""});
    check_line(std::string("slurm.") + key, *value, problems);
  }
  reader.field("signal_seconds", slurm.signal_seconds, {"", 10, kMaxSignalSeconds});
  reader.field("max_requeues", slurm.max_requeues, {"", 0, 1e6});
  reader.field("modules", slurm.modules, {""});
  reader.field("prologue", slurm.prologue, {""});
  reader.field("sbatch", slurm.sbatch, {""});
  check_time("slurm.time", slurm.time, problems);
  check_options("slurm.sbatch", slurm.sbatch, problems);
  for (const std::string& module : slurm.modules) check_line("slurm.modules", module, problems);
}

}  // namespace

Cluster Cluster::parse(const std::string& toml, const std::string& name) {
  const toml::table root = parse_toml(toml, name);
  Cluster cluster;
  RecipeProblems problems(name);
  TomlReader reader(root, problems);
  read_slurm(reader, cluster.slurm, problems);
  read_shape(reader, "workers", cluster.workers, false, problems);
  read_shape(reader, "coordinator", cluster.coordinator, true, problems);
  read_shape(reader, "finetune", cluster.finetune, false, problems);
  reader.field(
      "allocation", cluster.finetune_allocation, {.comment = "", .choices = "auto|same|own"});
  reader.report_unknown();
  problems.throw_if_any();
  return cluster;
}

Cluster Cluster::load(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    throw Error(
        ErrorKind::kUsage,
        path.string() +
            ": no such cluster file; deploy/slurm/cluster.example.toml is one to begin from");
  }
  return parse(read_toml(path), path.string());
}

}  // namespace hedgerow::storage
