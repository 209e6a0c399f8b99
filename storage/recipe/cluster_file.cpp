#include "storage/recipe/cluster_file.hpp"

#include <algorithm>

#include "storage/base/error.hpp"
#include "storage/files/file.hpp"
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
                            {"bind", &slurm.bind},
                            {"container", &slurm.container}}) {
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

void check_node(const NodeKind& node, const std::string& name, RecipeProblems& problems) {
  if (node.name.empty()) problems.add(name + ".name", "is missing; name this kind of node");
  if (node.memory_gb <= 0)
    problems.add(name + ".memory_gb", "is missing: the host memory of such a node");
  if (node.gpus > 0 && node.gpu_memory_gb <= 0)
    problems.add(name + ".gpu_memory_gb", "is missing: the memory of one of its GPUs");
  if (node.gpus == 0 && node.gpu_memory_gb > 0)
    problems.add(name + ".gpu_memory_gb", "is given, but gpus is 0; say how many a node has");
  if ((node.product_tflops > 0) != (node.other_tflops > 0))
    problems.add(name + ".product_tflops", "and other_tflops go together; give both or neither");
}

void read_nodes(TomlReader& reader, std::vector<NodeKind>& nodes, RecipeProblems& problems) {
  reader.tables<TomlReader>(
      "nodes", "[nodes] name = \"...\"", nodes, [](NodeKind& node, TomlReader& fields) {
        constexpr double kMost = 1e9;
        fields.field("name", node.name, {""});
        fields.field("count", node.count, {"", 1, 1e6});
        fields.field("gpus", node.gpus, {"", 0, 1024});
        fields.field("cores", node.cores, {"", 1, 1e5});
        for (auto [key, value] : {std::pair("gpu_memory_gb", &node.gpu_memory_gb),
                                  {"memory_gb", &node.memory_gb},
                                  {"local_disk_gb", &node.local_disk_gb},
                                  {"price_per_hour", &node.price_per_hour},
                                  {"mtbf_hours", &node.mtbf_hours},
                                  {"product_tflops", &node.product_tflops},
                                  {"other_tflops", &node.other_tflops},
                                  {"disk_gb_s", &node.disk_gb_s},
                                  {"worker_start_s", &node.worker_start_s}})
          fields.field(key, *value, {"", 0, kMost});
        fields.field("measured", node.measured, {""});
      });
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    const std::string name = "nodes[" + std::to_string(i) + "]";
    check_node(nodes[i], name, problems);
    for (std::size_t before = 0; before < i; ++before) {
      if (nodes[before].name == nodes[i].name && !nodes[i].name.empty())
        problems.add(name + ".name", "= \"" + nodes[i].name + "\" is named twice");
    }
  }
}

}  // namespace

std::optional<bool> Cluster::has_gpus() const {
  const auto has = [](const NodeKind& node) { return node.gpus > 0; };
  if (!nodes.empty()) return std::any_of(nodes.begin(), nodes.end(), has);
  if (workers.gpus_per_task > 0 || workers.gres.starts_with("gpu")) return true;
  return std::nullopt;
}

Cluster Cluster::parse(const std::string& toml, const std::string& name) {
  const toml::table root = parse_toml(toml, name);
  Cluster cluster;
  RecipeProblems problems(name);
  TomlReader reader(root, problems);
  read_nodes(reader, cluster.nodes, problems);
  reader.section("shared", "");
  reader.field("capacity_gb", cluster.shared.capacity_gb, {"", 0, 1e12});
  reader.field("bandwidth_gb_s", cluster.shared.bandwidth_gb_s, {"", 0, 1e6});
  reader.section("network", "");
  reader.field("inside_gb_s", cluster.network.inside_gb_s, {"", 0, 1e6});
  reader.field("between_gb_s", cluster.network.between_gb_s, {"", 0, 1e6});
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
    throw Error(ErrorKind::kUsage,
                path.string() +
                    ": no such cluster file; deploy/clusters has some to begin from, "
                    "deploy/slurm/cluster.example.toml one for Slurm");
  }
  Cluster cluster = parse(read_toml(path), path.string());
  std::string& image = cluster.slurm.container;
  if (!image.empty()) {
    image = (std::filesystem::absolute(path).parent_path() / image).lexically_normal().string();
  }
  return cluster;
}

}  // namespace hedgerow::storage
