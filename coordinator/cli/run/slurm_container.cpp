#include "coordinator/cli/run/slurm_container.hpp"

#include <set>

#include "storage/base/error.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::coordinator::cli {
namespace {

namespace fs = std::filesystem;
using storage::Error;
using storage::ErrorKind;

// Of a Hugging Face cache the whole folder of the model: its snapshots are links into blobs/.
fs::path whole_model(const fs::path& folder) {
  const fs::path snapshots = folder.parent_path();
  return snapshots.filename() == "snapshots" ? snapshots.parent_path() : folder;
}

bool is_inside(const fs::path& path, const fs::path& folder) {
  const fs::path relative = path.lexically_relative(folder);
  return !relative.empty() && *relative.begin() != "..";
}

}  // namespace

void require_image(const fs::path& image, const std::string& cluster_file) {
  std::error_code ignored;
  if (fs::exists(image, ignored)) return;
  throw Error(ErrorKind::kUsage,
              "slurm.container of " + cluster_file + ": there is no image " + image.string() +
                  "; build it as deploy/container/README.md says and put it there, on a file "
                  "system that all nodes see, or correct the path (it starts from the folder of "
                  "the cluster file)");
}

std::vector<std::string> folders_to_bind(const fs::path& run, const storage::Recipe& recipe) {
  std::set<fs::path> wanted;
  const auto add = [&wanted](const fs::path& folder) {
    std::string text = folder.lexically_normal().string();
    while (text.size() > 1 && text.ends_with('/')) text.pop_back();
    if (text.find_first_of(":,\"\n") != std::string::npos) {
      throw Error(ErrorKind::kUsage,
                  text +
                      ": Apptainer's --bind takes no path with a colon, a comma, a quotation mark "
                      "or a line break; rename it, or leave slurm.container out of the cluster "
                      "file");
    }
    wanted.insert(text);
  };
  add(run);
  using storage::ModelDirectory;
  const fs::path model =
      fs::absolute(ModelDirectory::open(recipe.model.path, storage::Weights::kOptional).path());
  for (const fs::path& folder : {model, fs::weakly_canonical(model)}) add(whole_model(folder));
  const auto add_text = [&add](const storage::DataSource& source) {
    const fs::path path = fs::absolute(source.path);
    for (const fs::path& each : {path, fs::weakly_canonical(path)})
      add(fs::is_directory(each) ? each : each.parent_path());
  };
  for (const auto* data : {&recipe.data_transfer, &recipe.data_finetune, &recipe.data_evaluate}) {
    for (const storage::DataSource& source : data->sources) add_text(source);
  }
  for (const storage::NamedText& text : recipe.texts) add_text(text.source);
  std::vector<std::string> folders;
  fs::path last;
  for (const fs::path& folder : wanted) {  // a folder comes before what is in it
    if (!last.empty() && is_inside(folder, last)) continue;
    last = folder;
    folders.push_back(folder.string());
  }
  return folders;
}

}  // namespace hedgerow::coordinator::cli
