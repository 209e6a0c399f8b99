#include "coordinator/cli/run/tokenizing.hpp"

#include "coordinator/cli/programs/programs.hpp"
#include "storage/base/file.hpp"
#include "storage/base/scoped_file.hpp"
#include "storage/model/model_config.hpp"

namespace hedgerow::coordinator::cli {

namespace fs = std::filesystem;
using storage::TokensOf;

namespace {

// "evaluate", "evaluate wikitext2".
std::string name_of(const TokensOf& of) {
  return storage::to_string(of.stage) + (of.text.empty() ? "" : " " + of.text);
}

}  // namespace

nlohmann::json tokenize(const TokenizeRequest& request, Terminal& terminal) {
  // The script reads a file; what the recipe inherits and where its paths start is resolved in this
  // one.
  fs::path resolved = request.out;
  resolved += ".recipe.toml";
  fs::create_directories(fs::absolute(resolved).parent_path());
  storage::write_atomically(resolved, request.recipe.to_toml());
  nlohmann::json done;
  const storage::ScopedFile goes_again(resolved);
  std::vector<std::string> words{"--recipe",
                                 resolved,
                                 "--model",
                                 storage::ModelDirectory::locate(request.model),
                                 "--stage",
                                 storage::to_string(request.of.stage),
                                 "--out",
                                 request.out};
  if (!request.of.text.empty()) words.insert(words.end(), {"--text", request.of.text});
  run_python(terminal,
             "tokenize " + name_of(request.of),
             "make_tokens.py",
             words,
             [&](const nlohmann::json& object) {
               if (object.value("event", "") == "done") done = object;
             });
  return done;
}

std::vector<TokensOf> missing_tokens(const storage::RunLayout& layout,
                                     const storage::Recipe& recipe) {
  std::vector<TokensOf> files = recipe.tokens_files();
  std::erase_if(files, [&](const TokensOf& of) {
    return fs::exists(layout.root() / storage::RunLayout::tokens(of));
  });
  return files;
}

bool tokenize_missing(const storage::RunLayout& layout,
                      const storage::Recipe& recipe,
                      Terminal& terminal) {
  for (const TokensOf& of : recipe.tokens_files()) {
    const fs::path out = layout.resolve(storage::RunLayout::tokens(of));
    if (fs::exists(out)) {
      terminal.detail(out.string() + ": there already");
      continue;
    }
    const nlohmann::json done = tokenize({recipe, recipe.model.path, of, out}, terminal);
    if (done.is_null()) return false;
    terminal.say("tokenized " + name_of(of) + ": " + tokens_text(done));
  }
  return true;
}

std::string tokens_text(const nlohmann::json& done) {
  return std::to_string(done.value("sequences", 0)) + " sequences of " +
         std::to_string(done.value("seq_len", 0)) + " tokens, " +
         std::to_string(done.value("num_train", 0)) + " for training";
}

}  // namespace hedgerow::coordinator::cli
